"""What happened in every step: who computed, came, was preempted and went, and what became of which block."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.executor import Step
from kvtwin.engine.pool_listener import PoolListener, TablePart
from kvtwin.engine.request import Request
from kvtwin.engine.server import ServerScheduler
from kvtwin.sim.block_changes import BlockChange
from kvtwin.sim.server_observer import ServerObserver


@dataclass(slots=True)
class StepEvents:
    """One step. Requests stand there by id; lists side by side are parallel."""

    scheduled: list[str] = field(default_factory=list)
    """Who computes in the step."""
    scheduled_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    """Output tokens that the step delivered to each of them."""
    admitted: list[str] = field(default_factory=list)
    """Who starts, or starts again."""
    hit_tokens: list[int] = field(default_factory=list)
    """What each of them found in the cache, or had in the host."""
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """Who ended since the step before."""
    block_changes: list[int] = field(default_factory=list)
    """`BlockChange` after `BlockChange` since the step before was scheduled, in order."""
    blocks: list[int] = field(default_factory=list)
    """The block of each."""
    evictions: int = 0
    """How many of the blocks that were taken had been hit-able."""
    table_requests: list[str] = field(default_factory=list)
    """Whose table got another block for this step; an entry per block. Who was preempted or has ended holds none."""
    table_positions: list[int] = field(default_factory=list)
    """Where it stands in the table of its cache group; -1: it left the table, and the request goes on."""
    table_blocks: list[int] = field(default_factory=list)
    """The block."""


class StepEventRecorder(ServerObserver, PoolListener):
    """Passes every step on when it is processed. Put it on a server before anything arrives there."""

    def __init__(self, scheduler: ServerScheduler, keep: Callable[[StepEvents], None]) -> None:
        self._pool = scheduler.kv_cache.pool
        self._keep = keep
        self._open: deque[StepEvents] = deque()
        self._num_tokens: dict[Request, int] = {}
        """Known tokens of every request that was admitted and has not ended."""
        self._changes: list[int] = []
        self._blocks: list[int] = []
        self._num_evictions = 0
        config = scheduler.config
        kinds = [spec.kind for spec in config.group_specs]
        self._only_appends = kinds == ["full_attention"] and config.parallel_sampling != "fork"
        self._tables: dict[Request, list[list[int]]] = {}
        """As they were noted last."""
        self._pool.listeners.append(self)

    def taken(self, blocks: Sequence[int]) -> None:
        self._note(BlockChange.TAKEN, blocks)

    def touched(self, blocks: Sequence[int]) -> None:
        self._note(BlockChange.HIT, [block for block in blocks if block != NULL_BLOCK])

    def freed(self, blocks: Sequence[int]) -> None:
        self._note(BlockChange.FREED, [block for block in blocks if block != NULL_BLOCK])

    def registered(self, blocks: Sequence[int], keys: Sequence[int], part: TablePart | None) -> None:
        self._note(BlockChange.CACHED, blocks)

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""
        for admission in step.admitted:
            self._num_tokens.setdefault(admission.request, admission.request.num_tokens)
        for request in step.finished:
            self._num_tokens.pop(request, None)
        for request in (*step.finished, *step.preempted):
            self._tables.pop(request, None)
        events = StepEvents(
            scheduled=[request.request_id for request in step.requests],
            scheduled_tokens=list(step.num_tokens),
            admitted=[admission.request.request_id for admission in step.admitted],
            hit_tokens=[admission.num_hit_tokens for admission in step.admitted],
            preempted=[request.request_id for request in step.preempted],
            finished=[request.request_id for request in step.finished],
            block_changes=self._changes,
            blocks=self._blocks,
            evictions=self._pool.num_evictions - self._num_evictions,
        )
        for request in step.requests:
            self._note_tables(request, events)
        self._changes, self._blocks, self._num_evictions = [], [], self._pool.num_evictions
        self._open.append(events)

    def processed(self, step: Step, now_ns: int) -> None:
        """The output of the oldest step was delivered."""
        events = self._open.popleft()
        known = self._num_tokens
        for request in step.requests:
            before = known.get(request, request.num_tokens)
            events.output_tokens.append(request.num_tokens - before)
            if request in known:
                known[request] = request.num_tokens
        self._keep(events)

    def close(self) -> None:
        """Nothing can happen any more: pass on steps that were never processed, as a server that hangs leaves one."""
        for events in self._open:
            events.output_tokens = [0] * len(events.scheduled)
            self._keep(events)
        self._open.clear()

    def _note_tables(self, request: Request, events: StepEvents) -> None:
        """Which blocks stand in its tables since it was noted last, and which do not any more."""
        noted = self._tables.setdefault(request, [[] for _ in request.block_tables])
        for before, table in zip(noted, request.block_tables, strict=True):
            start = len(before) if self._only_appends else 0
            came = [
                (position, block)
                for position, block in enumerate(table[start:], start)
                if block != NULL_BLOCK and (position >= len(before) or before[position] != block)
            ]
            if not self._only_appends:
                left = Counter(block for block in before if block != NULL_BLOCK)
                left.subtract(block for block in table if block != NULL_BLOCK)
                came = [(-1, block) for block, count in left.items() if count > 0] + came
                before.clear()
            before += table[start:]
            events.table_requests += [request.request_id] * len(came)
            events.table_positions += [position for position, _ in came]
            events.table_blocks += [block for _, block in came]

    def _note(self, change: BlockChange, blocks: Sequence[int]) -> None:
        self._changes += [change] * len(blocks)
        self._blocks += blocks
