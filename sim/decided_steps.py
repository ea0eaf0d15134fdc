"""What the engine decided in every step of a run, kept so that two runs can be compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvtwin.engine.block_keys import UNKNOWN_TOKEN
from kvtwin.engine.executor import Step
from kvtwin.engine.pool_listener import PoolListener
from kvtwin.engine.request import Request
from kvtwin.engine.server import ServerScheduler
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.step_shape import StepShape, step_shape

NOT_WRITTEN = -1
"""The slot of a token whose keys and values are there already."""


@dataclass(slots=True)
class DecidedStep:
    """One step. Requests stand there by id; sequences side by side are parallel."""

    index: int
    scheduled_ns: int
    shape: StepShape
    request_ids: Sequence[str]
    """Who computes in the step."""
    num_computed_tokens: Sequence[int]
    """Tokens that each of them had computed before."""
    num_tokens: Sequence[int]
    """Tokens that each of them computes."""
    block_tables: Sequence[Sequence[int]]
    """Per request, the engine's own table, up to the block of the step's last token."""
    admitted: Sequence[str]
    """Who starts, or starts again."""
    hit_tokens: Sequence[int]
    """What each of them need not compute."""
    external_tokens: Sequence[int]
    """What of that only the offload tier had."""
    forks: Sequence[str]
    """Who of them goes on from its parent's blocks, and does not write its token."""
    preempted: Sequence[str]
    """Who was preempted since the step before."""
    finished: Sequence[str]
    """Who ended since the step before."""
    finish_reasons: Sequence[str]
    evicted_blocks: Sequence[int]
    """Blocks that lost what they cached since the step before, in order."""
    copies: Sequence[tuple[int, int]]
    """Source and destination of each block copy within the device, in order."""
    saves: Sequence[tuple[int, int]]
    """Device block and host block of each copy to the host."""
    loads: Sequence[tuple[int, int]]
    """Device block and host block of each copy from the host."""
    output_tokens: Sequence[Sequence[int]] | None = None
    """Per request, the output tokens that the engine took from the step; None while it is in flight."""

    def slots(self, block_size: int) -> list[list[int]]:
        """Per request and token, the slot that the step writes to: by position, through the table."""
        parts = zip(self.request_ids, self.num_computed_tokens, self.num_tokens, self.block_tables, strict=True)
        return [
            [
                NOT_WRITTEN
                if request_id in self.forks
                else table[position // block_size] * block_size + position % block_size
                for position in range(start, start + num_tokens)
            ]
            for request_id, start, num_tokens, table in parts
        ]


class DecisionRecorder(ServerObserver, PoolListener):
    """Keeps the decisions of a server with one cache group that keeps all tokens, and without speculation."""

    def __init__(self, scheduler: ServerScheduler) -> None:
        assert len(scheduler.config.group_specs) == 1
        self.steps: list[DecidedStep] = []
        """All steps that were scheduled, in order."""
        self.block_size = scheduler.config.group_specs[0].block_size
        self._in_flight: deque[DecidedStep] = deque()
        self._tables: dict[Request, tuple[int, ...]] = {}
        """The latest table of each request: steps share what is equal."""
        self._num_tokens: dict[Request, int] = {}
        """Known tokens of every request that was admitted and has not ended."""
        self._evicted_blocks: list[int] = []
        """Blocks that lost what they cached since the step before."""
        scheduler.kv_cache.pool.listeners.append(self)

    def evicted(self, block: int, key: int) -> None:
        self._evicted_blocks.append(block)

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""
        for admission in step.admitted:
            self._num_tokens.setdefault(admission.request, admission.request.num_tokens)
        for request in step.finished:
            self._num_tokens.pop(request, None)
            self._tables.pop(request, None)
        ends = [start + count for start, count in zip(step.num_computed_tokens, step.num_tokens, strict=True)]
        decided = DecidedStep(
            index=step.index,
            scheduled_ns=now_ns,
            shape=step_shape(step),
            request_ids=_ids(step.requests),
            num_computed_tokens=list(step.num_computed_tokens),
            num_tokens=list(step.num_tokens),
            block_tables=[self._table(request, end) for request, end in zip(step.requests, ends, strict=True)],
            admitted=_ids([one.request for one in step.admitted]),
            hit_tokens=[one.num_hit_tokens for one in step.admitted],
            external_tokens=[one.num_external_tokens for one in step.admitted],
            forks=_ids([one.request for one in step.admitted if one.is_fork]),
            preempted=_ids(step.preempted),
            finished=_ids(step.finished),
            finish_reasons=[str(request.finish_reason) for request in step.finished],
            evicted_blocks=self._evicted_blocks,
            copies=[(one.source, one.destination) for one in step.copies],
            saves=[(one.device_block, one.host_block) for one in step.saves],
            loads=[(one.device_block, one.host_block) for one in step.loads],
        )
        self._evicted_blocks = []
        self.steps.append(decided)
        self._in_flight.append(decided)

    def processed(self, step: Step, now_ns: int) -> None:
        """The output of the oldest step was delivered."""
        self._in_flight.popleft().output_tokens = [self._new_tokens(request) for request in step.requests]

    def _table(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        table = tuple(request.block_tables[0][: -(-num_tokens // self.block_size)])
        known = self._tables.get(request)
        if table == known:
            return known
        self._tables[request] = table
        return table

    def _new_tokens(self, request: Request) -> Sequence[int]:
        start, end = self._num_tokens.get(request, request.num_tokens), request.num_tokens
        if request in self._num_tokens:
            self._num_tokens[request] = end
        return request.content.token_ids(start, end) or [UNKNOWN_TOKEN] * (end - start)


def _ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]
