"""A synthetic workload: conversations that share system prompts, with every token known."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvtwin.workloads.arrivals import arrivals_ns, check_rate
from kvtwin.workloads.distributions import Constant, Distribution
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS

_ONE, _NONE = Constant(1), Constant(0)
_STARTS, _SYSTEM_PROMPT, _CONVERSATION = range(3)
"""Streams of random numbers: one for starts and numbers of turns, one per system prompt, one per conversation."""


@dataclass(frozen=True, kw_only=True)
class SystemPrompts:
    """``number`` shared system prompts of different popularity.

    Prompt ``k`` (from 0) is chosen with weight ``1 / (k + 1) ** zipf_exponent``: 0 makes all equally popular.
    """

    number: int
    length_tokens: Distribution
    zipf_exponent: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SyntheticWorkload:
    """Describes a workload and yields its requests, in order of arrival, as often as it is iterated.

    Conversations start as a gamma process (`kvtwin.workloads.arrivals`). Each has a system prompt, if there are
    any, and ``turns`` turns of a user. With ``tool_calls`` it is an agent's: each turn takes that many requests more,
    because the model calls a tool, whose output makes the next prompt. The prompt of a request is the one before, its
    output and new tokens, of the user or of a tool, so a prefix cache can hit all but the last of them. A later request
    has ``think_time_ns``, the pause of the user or of the tool; its ``arrival_ns`` is nominal, as if every answer took
    no time. The last conversation is cut short at ``num_requests``.

    All random numbers come from ``seed`` through numpy's `default_rng`, with a stream of its own for each
    conversation: equal descriptions yield equal requests.
    """

    num_requests: int
    conversations_per_s: float
    user_tokens: Distribution
    output_tokens: Distribution
    burstiness: float = 1.0
    system_prompts: SystemPrompts | None = None
    turns: Distribution = _ONE
    think_time_ms: Distribution = _NONE
    tool_calls: Distribution = _NONE
    tool_tokens: Distribution = _ONE
    tool_time_ms: Distribution = _NONE
    n: int = 1
    """Samples of every prompt; a conversation goes on from the first."""
    vocabulary_size: int = 32_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_rate(self.conversations_per_s, self.burstiness)

    def __len__(self) -> int:
        return self.num_requests

    def __iter__(self) -> Iterator[RequestRecord]:
        rng = np.random.default_rng([self.seed, _STARTS])
        starts_ns = arrivals_ns(rng, self.conversations_per_s, self.burstiness)
        system_prompts = self._system_prompts()
        waiting: list[tuple[int, int, RequestRecord, Iterator[RequestRecord]]] = []
        next_start_ns, conversation = next(starts_ns), 0
        num_unplanned = self.num_requests
        while num_unplanned or waiting:
            while num_unplanned and (not waiting or next_start_ns <= waiting[0][0]):
                is_of_tool = self._requests_of_tools(rng)[:num_unplanned]
                num_unplanned -= len(is_of_tool)
                turns = self._conversation(conversation, next_start_ns, is_of_tool, system_prompts)
                heapq.heappush(waiting, (next_start_ns, conversation, next(turns), turns))
                next_start_ns, conversation = next(starts_ns), conversation + 1
            _, index, record, turns = heapq.heappop(waiting)
            yield record
            later = next(turns, None)
            if later is not None:
                heapq.heappush(waiting, (later.arrival_ns, index, later, turns))

    def _requests_of_tools(self, rng: np.random.Generator) -> list[bool]:
        """Of each request of a conversation, whether a tool's output leads to it; else the user does."""
        calls = [self.tool_calls.draw(rng) for _ in range(max(1, self.turns.draw(rng)))]
        return [is_of_tool for number in calls for is_of_tool in (False, *[True] * number)]

    def _conversation(
        self, index: int, start_ns: int, is_of_tool: list[bool], system_prompts: list[list[int]]
    ) -> Iterator[RequestRecord]:
        rng = np.random.default_rng([self.seed, _CONVERSATION, index])
        tokens = system_prompts[self._choose_system_prompt(rng)] if system_prompts else []
        arrival_ns = start_ns
        for turn, is_tool in enumerate(is_of_tool):
            pause_ms, new_tokens = self.think_time_ms, self.user_tokens
            if is_tool:
                pause_ms, new_tokens = self.tool_time_ms, self.tool_tokens
            think_time_ns = pause_ms.draw(rng) * MILLISECOND_NS if turn else None
            arrival_ns += think_time_ns or 0
            prompt = tokens + self._random_tokens(rng, new_tokens.draw(rng))
            output = self._random_tokens(rng, self.output_tokens.draw(rng))
            tokens = prompt + output
            yield RequestRecord(
                request_id=f"c{index}t{turn}",
                arrival_ns=arrival_ns,
                prompt_tokens=len(prompt),
                output_tokens=len(output),
                token_ids=prompt,
                output_token_ids=output,
                n=self.n,
                session=f"c{index}" if len(is_of_tool) > 1 else None,
                think_time_ns=think_time_ns,
                source=f"synthetic:{index + 1}",
            )

    def _system_prompts(self) -> list[list[int]]:
        if self.system_prompts is None:
            return []
        streams = [np.random.default_rng([self.seed, _SYSTEM_PROMPT, k]) for k in range(self.system_prompts.number)]
        return [self._random_tokens(rng, self.system_prompts.length_tokens.draw(rng)) for rng in streams]

    def _choose_system_prompt(self, rng: np.random.Generator) -> int:
        assert self.system_prompts is not None
        weights = 1.0 / np.arange(1, self.system_prompts.number + 1) ** self.system_prompts.zipf_exponent
        return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))

    def _random_tokens(self, rng: np.random.Generator, number: int) -> list[int]:
        tokens: list[int] = rng.integers(self.vocabulary_size, size=number).tolist()
        return tokens
