"""A device that remembers what was written where, and looks at everything that a step reads."""

from __future__ import annotations

from collections.abc import Sequence

from engine.executor import BlockCopy, Step
from engine.request import Request


class StaleMemoryError(AssertionError):
    """A request would have read what is not its own."""


class MemoryDevice:
    """Carries out steps on slots that hold whose token they are: a number for the token and all before it.

    It knows tables from steps alone, as a real executor does, and samples tokens that depend on what it reads and on
    who asks, so that equal memory means equal outputs.
    """

    def __init__(self, groups) -> None:
        self._groups = groups
        self._slots: dict[tuple[int, int], list[int | None]] = {}
        self._host: dict[int, list[list[int | None] | None]] = {}
        """Of each host block, what the device block held in each group."""
        self._tables: dict[Request, list[list[int]]] = {}
        self._tokens: dict[Request, list[int]] = {}
        self.num_copies = 0

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for index, source, destination in copies:
            self._slots[index, destination] = list(self._slots[index, source])
            self.num_copies += 1

    def run(self, step: Step) -> list[list[int]]:
        """Execute a step; return the sampled tokens."""
        for request in step.preempted:
            self._tables.pop(request, None)
        self._copy_to_host(step)
        self._copy_from_host(step)
        self.copy(step.copies)
        for admission in step.admitted:
            request = admission.request
            self._tables[request] = [list(table) for table in admission.block_tables]
            self._tokens[request] = request.content.token_ids(0, request.num_tokens)
        for request, tables in step.new_blocks:
            for table, blocks in zip(self._tables[request], tables, strict=True):
                table += blocks
        for request, index, position, block in step.replaced_blocks:
            self._tables[request][index][position] = block
        forks = {admission.request for admission in step.admitted if admission.is_fork}
        work = list(zip(step.requests, step.num_computed_tokens, step.num_tokens, step.samples, strict=True))
        for request, start, num_tokens, _ in work:
            if request not in forks:
                self.write(self._tables[request], self._tokens[request], start, start + num_tokens)
        sampled = []
        for request, start, num_tokens, samples in work:
            tokens = self._tokens[request]
            self.read(self._tables[request], tokens, start, start + num_tokens)
            sampled.append([self._sample(request)] if samples else [])
            tokens += sampled[-1]
        return sampled

    def _copy_to_host(self, step: Step) -> None:
        for block, host_block in step.saves:
            held = [self._slots.get((index, block)) for index in range(len(self._groups))]
            self._host[host_block] = [slots and list(slots) for slots in held]

    def _copy_from_host(self, step: Step) -> None:
        for block, host_block in step.loads:
            for index, slots in enumerate(self._host[host_block]):
                if slots:
                    self._slots[index, block] = list(slots)

    def write(self, tables: list[list[int]], tokens: Sequence[int], start: int, end: int) -> None:
        """Keep keys and values of tokens ``start`` to ``end`` in every group."""
        names = _names(tokens)
        for index, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            for position in range(start, end):
                block, offset = table[position // group.block_size], position % group.block_size
                self._slots.setdefault((index, block), [None] * group.block_size)[offset] = names[position]

    def read(self, tables: list[list[int]], tokens: Sequence[int], start: int, end: int) -> None:
        """Look at everything that tokens ``start`` to ``end`` look at. StaleMemoryError: it is not what they wrote."""
        names = _names(tokens)
        for index, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            first = group.num_dead_blocks(start) * group.block_size
            for position in range(first, end):
                block, offset = table[position // group.block_size], position % group.block_size
                found = self._slots.get((index, block), [None] * group.block_size)[offset]
                if found != names[position]:
                    raise StaleMemoryError(f"group {index}, block {block}: token {position} of {tokens} is not there")

    def _sample(self, request: Request) -> int:
        sample = request.request_id.partition("_")[0]
        return hash((sample, _names(self._tokens[request])[-1])) % 5


def _names(tokens: Sequence[int]) -> list[int]:
    """For each token a number that stands for it and all before it."""
    names, name = [], 0
    for token in tokens:
        name = hash((name, token))
        names.append(name)
    return names
