"""What a run leaves behind: one row per request, one per step, and sums over both."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import NamedTuple

from kvtwin.engine.executor import Admission, AdmissionStop, Step
from kvtwin.engine.request import FinishReason, Request
from kvtwin.engine.server import ServerScheduler
from kvtwin.engine.statistics import EngineStatistics
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

NEVER = -1
"""A time that did not come."""


class _EndedTurn(NamedTuple):
    """The latest turn of a session that has ended."""

    finish_ns: int
    block_keys: array[int]
    """Keys of its full computed blocks: the history that the next turn can find."""

    def num_shared_blocks(self, block_keys: Sequence[int]) -> int:
        """Leading blocks that a turn with these keys repeats. Equal keys mean equal prefixes, so bisection finds it."""
        most = min(len(block_keys), len(self.block_keys))
        return bisect_left(range(most), True, key=lambda index: block_keys[index] != self.block_keys[index])


class _Sent:
    """A record that a client sent, and whose samples are not all served yet."""

    __slots__ = (
        "arrival_ns",
        "failed",
        "index",
        "num_open_samples",
        "previous_turn",
        "request_id",
        "session",
        "source",
    )

    def __init__(self, record: RequestRecord, index: int, now_ns: int, previous_turn: _EndedTurn | None) -> None:
        self.request_id = record.request_id
        self.index = index
        """How many records were sent before."""
        self.arrival_ns = now_ns
        self.num_open_samples = record.n
        self.previous_turn = previous_turn
        self.session = record.session
        self.source = record.source
        self.failed = False
        """Whether the engine gave up one of its samples."""


class _Open:
    """A request that is being served."""

    __slots__ = (
        "admitted_step",
        "first_hit_tokens",
        "first_scheduled_ns",
        "first_token_ns",
        "forked_tokens",
        "history_tokens",
        "last_token_ns",
        "num_tokens",
        "reserved_slots",
        "resumed_hit_tokens",
        "sent",
    )

    def __init__(self, sent: _Sent, num_prompt_tokens: int) -> None:
        self.sent = sent
        self.first_scheduled_ns = NEVER
        self.first_token_ns = NEVER
        self.last_token_ns = NEVER
        self.num_tokens = num_prompt_tokens
        self.admitted_step = 0
        self.reserved_slots = 0
        self.first_hit_tokens = 0
        self.forked_tokens = 0
        self.history_tokens = 0
        self.resumed_hit_tokens = 0


_FAILURES = (FinishReason.REJECTED, FinishReason.CAPACITY, FinishReason.ERROR)
_LACKS_MEMORY = (AdmissionStop.MEMORY, AdmissionStop.PREEMPTION)
_computed_tokens, _slots = attrgetter("num_computed_tokens"), attrgetter("num_slots")


def integers() -> array[int]:
    """An empty column."""
    return array("q")


@dataclass
class RequestColumns:
    """One row per request that reached the engine, in order of completion. Times are -1 where they never came.

    A record that asks for n samples of its prompt is n requests, ``0_ID`` and so on: a row for each.
    """

    request_id: list[str] = field(default_factory=list)
    record_index: array[int] = field(default_factory=integers)
    """The workload's record, counted as they were sent: the same for all samples of one prompt."""
    session: list[str | None] = field(default_factory=list)
    finish_reason: list[str] = field(default_factory=list)
    finish_message: list[str] = field(default_factory=list)
    arrival_ns: array[int] = field(default_factory=integers)
    first_scheduled_ns: array[int] = field(default_factory=integers)
    first_token_ns: array[int] = field(default_factory=integers)
    finish_ns: array[int] = field(default_factory=integers)
    prompt_tokens: array[int] = field(default_factory=integers)
    output_tokens: array[int] = field(default_factory=integers)
    hit_tokens: array[int] = field(default_factory=integers)
    """Prompt tokens found in the cache at the first admission (vLLM's num_cached_tokens)."""
    forked_tokens: array[int] = field(default_factory=integers)
    """Prompt tokens that the first admission took over from another sample's blocks, where samples are forks."""
    resumed_hit_tokens: array[int] = field(default_factory=integers)
    """Tokens found again in the cache when the request resumed after preemptions."""
    preemptions: array[int] = field(default_factory=integers)
    pause_ns: array[int] = field(default_factory=integers)
    """From the end of the session's latest turn to the arrival; -1 where no turn of it had ended."""
    history_tokens: array[int] = field(default_factory=integers)
    """Tokens that the prompt shares with that turn, as far as whole blocks can be hit."""


@dataclass
class StepColumns:
    """One row per step, in order; counts are as they stood when the step was scheduled."""

    scheduled_ns: array[int] = field(default_factory=integers)
    start_ns: array[int] = field(default_factory=integers)
    end_ns: array[int] = field(default_factory=integers)
    sequences: array[int] = field(default_factory=integers)
    tokens: array[int] = field(default_factory=integers)
    admitted: array[int] = field(default_factory=integers)
    preempted: array[int] = field(default_factory=integers)
    hit_tokens: array[int] = field(default_factory=integers)
    running: array[int] = field(default_factory=integers)
    waiting: array[int] = field(default_factory=integers)
    free_blocks: array[int] = field(default_factory=integers)
    lacks_memory: array[int] = field(default_factory=integers)
    """1 where somebody was preempted, or the head of the queue not admitted, because too few blocks are free."""
    computed_tokens: array[int] = field(default_factory=integers)
    """Tokens that the running requests have computed, each counted for itself, when the step is done."""
    unfilled_slots: array[int] = field(default_factory=integers)
    """Slots that they have besides, in their last blocks or reserved for them."""
    unused_slots: array[int] = field(default_factory=integers)
    """Slots of these that are reserved and never filled, as is known when the request has ended."""
    saved_blocks: array[int] = field(default_factory=integers)
    """Blocks copied to the host: swapped out or offloaded."""
    loaded_blocks: array[int] = field(default_factory=integers)
    """Blocks copied from the host."""
    pinned_blocks: array[int] = field(default_factory=integers)
    """Blocks that are held between the turns of sessions (``--retention``); they are not free."""


class Recorder:
    """Watches a simulated server and keeps its rows and sums."""

    def __init__(self, scheduler: ServerScheduler) -> None:
        self.scheduler = scheduler
        """The scheduler that is watched, with its statistics."""
        self._reserves = scheduler.config.allocator != "paged"
        self._open: dict[Request, _Open] = {}
        self._ended_turns: dict[str, _EndedTurn] = {}
        self.requests = RequestColumns()
        self.steps = StepColumns()
        self.refused: Counter[str] = Counter()
        """Records that never reached the engine, by reason."""
        self.rejected: Counter[str] = Counter()
        """Records of which the engine gave up a sample, by reason."""
        self.first_refused: dict[str, str] = {}
        """Per reason, where the first such record stands."""
        self.inter_token_latencies_ns: Counter[int] = Counter()
        self.output_tokens_per_s: Counter[int] = Counter()
        """Output tokens delivered in each second since the start."""
        self.unfinished: list[str] = []
        """Ids of records that were still live when nothing could move any more."""
        self.num_unsent = 0
        """Requests whose clients waited for these, so that they never reached the server."""
        self.end_ns = 0
        self.num_requests_unknown_prefix = 0
        self.peak_requests = 0
        """Most records at the server at one time."""
        self.incomplete_records: set[int] = set()
        """Records, by index, of which a sample was given up or never ended."""
        self._num_sent = 0
        self._num_open_records = 0
        self._first_step = 0

    @property
    def statistics(self) -> EngineStatistics:
        """What the engine counted."""
        return self.scheduler.statistics

    @property
    def num_evictions(self) -> int:
        """Blocks that lost their key because they were handed out again."""
        return self.scheduler.kv_cache.pool.num_evictions

    def start_anew(self) -> None:
        """Forget all steps so far: the warm-up is over. Requests of the warm-up leave no row, whenever they end."""
        self.scheduler.start_counting()
        self._first_step = len(self.steps.scheduled_ns)
        self.peak_requests = self._num_open_records

    def refuse(self, record: RequestRecord, reason: str) -> None:
        """Count a record that the front end refuses."""
        self.refused[reason] += 1
        self.first_refused.setdefault(reason, record.source)

    def arrive(self, samples: Sequence[Request], record: RequestRecord, now_ns: int) -> None:
        """A record reaches the server, as one request per sample."""
        previous_turn = None if record.session is None else self._ended_turns.get(record.session)
        sent = _Sent(record, self._num_sent, now_ns, previous_turn)
        for request in samples:
            self._open[request] = _Open(sent, record.prompt_tokens)
        self._num_sent += 1
        self._num_open_records += 1
        if self._num_open_records > self.peak_requests:
            self.peak_requests = self._num_open_records
        if not record.knows_prefix and not samples[0].is_warm_up:  # but what further samples share is known
            self.num_requests_unknown_prefix += 1

    def admit(self, admitted: Sequence[Admission], scheduled_ns: int) -> int:
        """Requests were admitted to a step that was scheduled; return the tokens that they hit."""
        hit_tokens = 0
        for admission in admitted:
            row = self._open[admission.request]
            if admission.resumed:
                row.resumed_hit_tokens += admission.num_hit_tokens
            else:
                row.first_scheduled_ns = scheduled_ns
                if admission.is_fork:
                    row.forked_tokens = admission.request.num_prompt_tokens
                else:
                    row.first_hit_tokens = admission.num_hit_tokens
                    if row.sent.previous_turn:
                        row.history_tokens = self._history_tokens(admission.request, row.sent.previous_turn)
            if not admission.is_fork:
                hit_tokens += admission.num_hit_tokens
            if self._reserves:
                row.admitted_step, row.reserved_slots = len(self.steps.scheduled_ns), admission.request.num_slots
        return hit_tokens

    def schedule(self, step: Step, scheduled_ns: int) -> None:
        """A step was scheduled."""
        hit_tokens = self.admit(step.admitted, scheduled_ns)
        columns = self.steps
        columns.scheduled_ns.append(scheduled_ns)
        columns.sequences.append(len(step.requests))
        columns.tokens.append(step.total_tokens)
        columns.admitted.append(len(step.admitted))
        columns.preempted.append(len(step.preempted))
        columns.hit_tokens.append(hit_tokens)
        columns.running.append(len(self.scheduler.running))
        columns.waiting.append(len(self.scheduler.waiting))
        columns.free_blocks.append(self.scheduler.kv_cache.pool.num_free_blocks)
        computed_tokens = sum(map(_computed_tokens, self.scheduler.running))
        columns.lacks_memory.append(step.admission_stop in _LACKS_MEMORY)
        columns.computed_tokens.append(computed_tokens)
        columns.unfilled_slots.append(sum(map(_slots, self.scheduler.running)) - computed_tokens)
        columns.unused_slots.append(0)
        columns.saved_blocks.append(len(step.saves))
        columns.loaded_blocks.append(len(step.loads))
        columns.pinned_blocks.append(self.scheduler.retention.num_pinned_blocks)

    def run(self, start_ns: int, end_ns: int) -> None:
        """The oldest scheduled step of which this was not told yet ran from ``start_ns`` to ``end_ns``."""
        self.steps.start_ns.append(start_ns)
        self.steps.end_ns.append(end_ns)

    def process(self, step: Step, tokens: Sequence[Sequence[int]], now_ns: int) -> None:
        """The output of a step was delivered at ``now_ns``."""
        latencies = self.inter_token_latencies_ns
        num_delivered = 0
        for request, token_ids in zip(step.requests, tokens, strict=True):
            if not token_ids:
                continue
            row = self._open.get(request)
            if row is None or request.num_tokens == row.num_tokens:
                continue
            if not request.is_warm_up:
                num_delivered += request.num_tokens - row.num_tokens
            row.num_tokens = request.num_tokens
            if row.first_token_ns == NEVER:
                row.first_token_ns = now_ns
            elif not request.is_warm_up:
                latencies[now_ns - row.last_token_ns] += 1
            row.last_token_ns = now_ns
        if num_delivered:
            self.output_tokens_per_s[now_ns // SECOND_NS] += num_delivered

    def deliver_first(self, request: Request, first_token_ns: int) -> None:
        """The first token of ``request`` was delivered at this time."""
        self._open[request].first_token_ns = first_token_ns

    def end(self, request: Request, now_ns: int) -> bool:
        """A request ended, for whatever reason; return whether all samples of its record have."""
        row = self._open.pop(request)
        if row.reserved_slots:
            for step in range(row.admitted_step, len(self.steps.unused_slots)):
                self.steps.unused_slots[step] += row.reserved_slots - request.num_computed_tokens
        sent = row.sent
        sent.num_open_samples -= 1
        is_last = sent.num_open_samples == 0
        self._num_open_records -= is_last
        if request.session is not None:
            num_computed_blocks = (request.num_tokens - 1) // self.scheduler.config.hash_block_size
            self._ended_turns[request.session] = _EndedTurn(
                now_ns, array("q", request.block_keys[:num_computed_blocks])
            )
        if request.is_warm_up:
            return is_last
        columns = self.requests
        assert request.finish_reason is not None
        columns.request_id.append(request.request_id)
        columns.record_index.append(sent.index)
        columns.session.append(sent.session)
        columns.finish_reason.append(str(request.finish_reason))
        columns.finish_message.append(request.finish_message)
        columns.arrival_ns.append(sent.arrival_ns)
        columns.first_scheduled_ns.append(row.first_scheduled_ns)
        columns.first_token_ns.append(row.first_token_ns)
        columns.finish_ns.append(now_ns)
        columns.prompt_tokens.append(request.num_prompt_tokens)
        columns.output_tokens.append(request.num_output_tokens)
        columns.hit_tokens.append(row.first_hit_tokens)
        columns.forked_tokens.append(row.forked_tokens)
        columns.resumed_hit_tokens.append(row.resumed_hit_tokens)
        columns.preemptions.append(request.num_preemptions)
        columns.pause_ns.append(sent.arrival_ns - sent.previous_turn.finish_ns if sent.previous_turn else NEVER)
        columns.history_tokens.append(row.history_tokens)
        if request.finish_reason in _FAILURES and not sent.failed:
            sent.failed = True
            self.incomplete_records.add(sent.index)
            reason = self._reason(request)
            self.rejected[reason] += 1
            self.first_refused.setdefault(reason, f"{sent.source}: {request.finish_message}")
        return is_last

    def _history_tokens(self, request: Request, previous_turn: _EndedTurn) -> int:
        config = self.scheduler.config
        shared_tokens = previous_turn.num_shared_blocks(request.block_keys) * config.hash_block_size
        most_tokens = min(shared_tokens, request.num_prompt_tokens - 1)
        return most_tokens - most_tokens % config.alignment_tokens

    def _reason(self, request: Request) -> str:
        if request.finish_reason is FinishReason.CAPACITY:
            return "outgrew the pool"
        if request.finish_reason is FinishReason.ERROR:
            return "two images under one hash"
        without_lora = request.lora is not None and self.scheduler.config.max_loras == 0
        return "LoRA is not enabled" if without_lora else "never fits"

    def close(self, now_ns: int, unfinished: Sequence[Request], num_unsent: int = 0) -> None:
        """Nothing can happen any more."""
        self.end_ns = now_ns
        while len(self.steps.start_ns) < len(self.steps.scheduled_ns):  # a hanging server leaves one, without requests
            self.run(now_ns, now_ns)
        for column in fields(self.steps):
            del getattr(self.steps, column.name)[: self._first_step]
        rows = [self._open[request].sent for request in unfinished if not request.is_warm_up]
        left = {sent.index: sent for sent in rows}
        self.incomplete_records.update(left)
        self.unfinished = [sent.request_id for sent in left.values() if not sent.failed]
        self.num_unsent = num_unsent
