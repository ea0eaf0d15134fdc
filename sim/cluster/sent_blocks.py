"""Blocks of prompts that a router remembers to have sent, the least recently sent of which it forgets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from kvtwin.workloads.prefixes.chains import Run


@dataclass(slots=True)
class _Prompt:
    """The blocks, from ``first`` to ``end``, that were last sent with one prompt and are not forgotten."""

    first: int
    end: int
    sent_ns: int
    runs: list[Run]


_Stretch = tuple[int, _Prompt, int]
"""Blocks of a run that were last sent with the same prompt: where they end in the run, that prompt, and a bit for each
replica that they were sent to since they were last forgotten."""


class SentBlocks:
    """At most ``most_blocks`` blocks, in the order in which they were last sent, those of one prompt from its start on.

    That is a list of single blocks, of which each use moves one to the end; but it is kept prompt by prompt. Whoever
    shares a block shares all before it, so what of a prompt was not sent again with a later one is its end; and of that
    the first blocks are forgotten first. So what is left of each prompt is a single range.
    """

    def __init__(self, most_blocks: int) -> None:
        self.num_blocks = 0
        self._most_blocks = most_blocks
        self._prompts: deque[_Prompt] = deque()
        """In the order in which they were sent, those of which something is left among them."""
        self._stretches: dict[int, list[_Stretch]] = {}
        """Of each run, from its start on: the latest prompt first."""

    def sent_to(self, runs: list[Run]) -> Iterator[tuple[int, int]]:
        """Leading blocks of ``runs`` that are remembered: so many of them, and a bit for each replica that got them."""
        run_start = 0
        for name, count in runs:
            first = 0
            for end, prompt, replicas in self._stretches.get(name, ()):
                if first >= count:
                    break
                if run_start + first < prompt.first:
                    return
                yield min(end, count) - first, replicas
                first = end
            if first < count:
                return
            run_start += count

    def send(self, runs: list[Run], num_private_blocks: int, replica: int, now_ns: int) -> None:
        """A prompt of ``runs``, and of blocks behind them that no other prompt has, goes to ``replica``."""
        num_blocks = sum(count for _, count in runs) + num_private_blocks
        prompt = _Prompt(0, num_blocks, now_ns, runs)
        run_start = 0
        for name, count in runs:
            self._stretches[name] = self._taken_over(name, count, run_start, prompt, 1 << replica)
            run_start += count
        self._prompts.append(prompt)
        self.num_blocks += num_blocks
        while self.num_blocks > self._most_blocks:
            self._forget_oldest(self.num_blocks - self._most_blocks)

    def forget_before(self, time_ns: int) -> None:
        """Forget what was last sent before ``time_ns``."""
        while self._prompts and self._prompts[0].sent_ns < time_ns:
            self._forget_oldest(self.num_blocks)

    def _taken_over(self, name: int, count: int, run_start: int, prompt: _Prompt, replica_bit: int) -> list[_Stretch]:
        """The stretches of a run whose first ``count`` blocks are sent with ``prompt``."""
        taken: list[_Stretch] = []
        others: list[_Stretch] = []
        first = 0
        for stretch in self._stretches.get(name, ()):
            end, other, replicas = stretch
            if first < count:
                last = min(end, count)
                known = min(max(first, other.first - run_start), last)
                _append(taken, first, known, prompt, replica_bit)
                _append(taken, known, last, prompt, replica_bit | replicas)
                self.num_blocks -= last - known
                other.first = max(other.first, run_start + last)
            if end > count:
                others.append(stretch)
            first = end
        _append(taken, first, count, prompt, replica_bit)
        return taken + others

    def _forget_oldest(self, most_blocks: int) -> None:
        """Forget the first ``most_blocks`` of the oldest prompt, or all that is left of it."""
        oldest = self._prompts[0]
        num_blocks = min(oldest.end - oldest.first, most_blocks)
        oldest.first += num_blocks
        self.num_blocks -= num_blocks
        if oldest.first == oldest.end:
            self._prompts.popleft()
            for name, _ in oldest.runs:
                if self._stretches[name][0][1] is oldest:  # nor is anything left of earlier prompts
                    del self._stretches[name]


def _append(stretches: list[_Stretch], first: int, end: int, prompt: _Prompt, replicas: int) -> None:
    if first >= end:
        return
    if stretches and stretches[-1][2] == replicas:
        stretches.pop()
    stretches.append((end, prompt, replicas))
