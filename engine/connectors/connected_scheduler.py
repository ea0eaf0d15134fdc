"""The scheduler of an engine with a KV connector (specification, section 18).

All that a connector changes is here, so that an engine without one decides, and costs, what it did before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.chunks import Candidate
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.connector import Connector, RemoteMatch, Transfers
from kvtwin.engine.connectors.failed_loads import valid_prefixes
from kvtwin.engine.connectors.holders_first_queue import HoldersFirstQueue
from kvtwin.engine.executor import Admission, AdmissionStop, Step
from kvtwin.engine.hit import Hit
from kvtwin.engine.kv_cache_manager import KVCacheManager
from kvtwin.engine.request import BlockTables, FinishReason, Request, RequestStatus
from kvtwin.engine.scheduler import Scheduler


def without_lookahead_hashes(config: EngineConfig) -> EngineConfig:
    """With a connector the hash of a block covers no tokens after it, whatever the drafter reads."""
    if config.speculation is None:
        return config
    return replace(config, speculation=replace(config.speculation, disable_lookahead_block_hashes=True))


class ConnectedScheduler(Scheduler):
    """Requests may wait for tokens that somebody else brings, and ended ones may keep blocks that somebody reads.

    Invariants (checked by :mod:`kvtwin.engine.connectors.invariants`): whoever waits and holds blocks is loading, or
    was; only these, running requests, ``kept`` ones and blocks to be freed later hold any; a kept request has ended.
    """

    kv_cache: KVCacheManager
    waiting: HoldersFirstQueue

    def __init__(
        self,
        config: EngineConfig,
        connector: Connector,
        keys: KeySpace | None = None,
        *,
        recomputes_failed_loads: bool = False,
    ) -> None:
        """``recomputes_failed_loads``: what could not be loaded is computed; else its request ends with an error.

        Raises ValueError for caches that are not modelled with a connector: those of states.
        """
        super().__init__(without_lookahead_hashes(config), keys)
        if any(group.kind == "mamba" for group in config.group_specs):
            raise ValueError("a connector: expected cache groups of attention, got mamba, whose states are not loaded")
        self.connector = connector
        self.waiting = HoldersFirstQueue(config.scheduling_policy)
        self.kept: dict[str, Request] = {}
        """Requests that ended and still hold their blocks: the connector reads them, or still fills them."""
        self.recomputes_failed_loads = recomputes_failed_loads
        self._received: set[Request] = set()
        """Who waits for a load that is over."""
        self._failed: set[Request] = set()
        """Who waits for a load of which not everything arrives."""
        self._prefilling: dict[Request, None] = {}
        """Requests that hold blocks for a part of their known tokens and will need the rest: they must not all wait."""
        self._passed_over: list[Request] = []
        self._started_loads: list[Admission] = []
        self._defers_frees = config.async_scheduling and connector.role.loads
        self._transfers = Transfers()
        self._num_scheduled_steps = self._num_processed_steps = 0
        self._last_steps: dict[Request, int] = {}
        self._freed_later: deque[tuple[int, list[int]]] = deque()
        speculation = config.speculation
        self._num_step_tokens = 1 + speculation.num_speculative_tokens + config.lookahead_slots if speculation else 0
        self._num_step_blocks = sum(-(-self._num_step_tokens // group.block_size) for group in config.group_specs)

    # ---------------------------------------------------------------- who comes and goes

    def add_request(self, request: Request) -> None:
        """See :class:`Scheduler`."""
        if request.request_id in self.kept:
            raise ValueError(f"request id {request.request_id!r}: the blocks of a request with this id are still read")
        super().add_request(request)

    def has_requests(self) -> bool:
        """See :class:`Scheduler`."""
        return super().has_requests() or bool(self.kept) or self.connector.has_pending_work()

    def reset_prefix_cache(self, *, reset_running_requests: bool = False, reset_external: bool = False) -> bool:
        """See :class:`Scheduler`; ``reset_external`` clears what the connector keeps as well."""
        done = super().reset_prefix_cache(reset_running_requests=reset_running_requests)
        return (not reset_external or self.connector.reset_cache()) and done

    def blocks_to_be_freed(self) -> list[int]:
        """Blocks of requests that let go of them while a step in flight may still write to them."""
        return [block for _, blocks in self._freed_later for block in blocks]

    def _finish(self, request: Request, reason: FinishReason, message: str = "") -> None:
        is_loading = request.status is RequestStatus.WAITING_FOR_REMOTE_KV and request not in self._received
        self._received.discard(request)
        self._failed.discard(request)
        self._prefilling.pop(request, None)
        request.finish_reason = reason
        self.kv_cache.forget(request)
        if self.connector.finished(request, self._computed_tables(request)) or is_loading:
            self.kept[request.request_id] = request
        super()._finish(request, reason, message)

    def _preempt(self, request: Request, needed_by: Request | None) -> None:
        self._prefilling.pop(request, None)
        if self.connector.must_deliver:  # what is handed on has no valid blocks after this
            request.drop_samples = request.num_in_flight_samples
            self.encoder.drop_outputs(request)
        super()._preempt(request, needed_by)

    def _computed_tables(self, request: Request) -> BlockTables:
        """The blocks of the tokens that ``request`` computed, without those for tokens to come."""
        groups = self.kv_cache.groups
        tables = request.block_tables or [[] for _ in groups]
        return [
            table[: -(-request.num_computed_tokens // group.block_size)]
            for table, group in zip(tables, groups, strict=True)
        ]

    def _free(self, request: Request, *, to_host: bool = False) -> None:
        if self.kept.get(request.request_id) is request:
            return
        if self._is_in_flight(request):
            self._freed_later.append((self._num_scheduled_steps, self.kv_cache.take_blocks(request)))
        else:
            super()._free(request, to_host=to_host)

    def _is_in_flight(self, request: Request) -> bool:
        """Whether a step in flight may write blocks that a load could be given meanwhile."""
        return self._defers_frees and self._last_steps.get(request, 0) > self._num_processed_steps

    def _can_preempt(self, victim: Request) -> bool:
        return not self.connector.frees_blocks_soon() and not self._is_in_flight(victim)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> Step:
        """See :class:`Scheduler`."""
        self._started_loads.clear()
        step = super().schedule()
        if step.total_tokens:
            self._num_scheduled_steps += 1
        for request in step.requests:
            if self._defers_frees:
                self._last_steps[request] = self._num_scheduled_steps
            if not request.is_prefill_chunk:
                self._prefilling.pop(request, None)
        step.transfers = self.connector.scheduled(step)
        return step

    def _admit_next(self, step: Step, passed_over: list[Request]) -> AdmissionStop | None:
        self._passed_over = passed_over
        return super()._admit_next(step, passed_over)

    def _must_skip(self, request: Request) -> bool:
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KV:
            if request not in self._received:
                return True
            self._take_load(request)
        return super()._must_skip(request)

    def _candidate(self, step: Step, passed_over: list[Request]) -> Candidate | AdmissionStop:
        while True:
            candidate = super()._candidate(step, passed_over)
            if isinstance(candidate, AdmissionStop) or candidate.hit.is_held:
                return candidate
            request, hit = candidate.request, candidate.hit
            match = self.connector.match(request, hit.num_tokens)
            if match is None:
                self._pass_over(request, passed_over)
            elif match.num_tokens == 0:
                return candidate
            else:
                return candidate._replace(hit=self._with_match(hit, match))

    def _with_match(self, hit: Hit, match: RemoteMatch) -> Hit:
        """What the device has and what the connector adds; blocks behind windows are not needed any more."""
        num_tokens = hit.num_tokens + match.num_tokens
        tables = []
        for group, table in zip(self.kv_cache.groups, hit.block_tables, strict=True):
            num_dead_blocks = group.num_dead_blocks(num_tokens)
            tables.append([NULL_BLOCK] * num_dead_blocks + table[num_dead_blocks:])
        return replace(
            hit,
            block_tables=tables,
            num_tokens=num_tokens,
            num_external_tokens=match.num_tokens,
            is_loading=match.is_async,
        )

    def _find_hit(self, request: Request, step: Step) -> Hit:
        if request.block_tables:
            return Hit(request.block_tables, request.num_computed_tokens, is_held=True)
        return super()._find_hit(request, step)

    def _chunk(self, candidate: Candidate) -> int | AdmissionStop:
        return 0 if candidate.hit.is_loading else super()._chunk(candidate)

    def _place(self, candidate: Candidate, num_new_tokens: int) -> AdmissionStop | None:
        if not candidate.hit.is_loading:
            return super()._place(candidate, num_new_tokens)
        request, hit = candidate.request, candidate.hit
        blocks = self.kv_cache.allocate_slots(
            request,
            0,
            hit,
            num_reserved_blocks=self.config.watermark_blocks if self.running else 0,
            reserve_full_sequence=self.config.scheduler_reserve_full_isl,
            num_promised_blocks=self._num_promised_blocks(),
        )
        if blocks is None:
            self.encoder.release(request)
            return AdmissionStop.MEMORY
        self._start_load(request, hit)
        return None

    def _num_promised_blocks(self) -> int:
        """Blocks that must stay free beside a load, so that whoever holds blocks can go on."""
        return self._num_step_blocks + sum(
            self.kv_cache.num_blocks_to_finish(
                request, min(request.num_tokens, self.config.max_model_len) + self._num_step_tokens
            )
            for request in self._prefilling
        )

    def _start_load(self, request: Request, hit: Hit) -> None:
        tables = [list(table) for table in request.block_tables]
        self.connector.allocated(request, tables, hit.num_external_tokens)
        resumed = request.status is RequestStatus.PREEMPTED
        self._started_loads.append(
            Admission(request, hit.num_tokens, tables, resumed, num_external_tokens=hit.num_external_tokens)
        )
        request.status = RequestStatus.WAITING_FOR_REMOTE_KV
        request.num_computed_tokens = hit.num_tokens
        self._prefilling[request] = None
        self._pass_over(request, self._passed_over)

    def _take_load(self, request: Request) -> None:
        """Let a request wait for its admission whose load is over: what arrived can be hit from now on."""
        self._received.remove(request)
        if request in self._failed and not request.num_computed_tokens:
            super()._free(request)
        else:
            self.kv_cache.register(request, request.num_computed_tokens)
        self._failed.discard(request)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING

    def _admit(self, step: Step, request: Request, hit: Hit, num_new_tokens: int) -> None:
        super()._admit(step, request, hit, num_new_tokens)
        if hit.num_tokens + num_new_tokens < request.num_tokens:
            self._prefilling[request] = None
        self.connector.allocated(request, step.admitted[-1].block_tables, hit.num_external_tokens)

    def _record_lookups(self, step: Step) -> None:
        lookups = [*step.admitted, *self._started_loads]
        if self.config.enable_prefix_caching:
            self.statistics.record_admissions(lookups, asks_host=True)
            return
        for one in lookups:
            if not one.swapped:
                self.statistics.external_prefix_cache.record(
                    one.request.num_tokens, one.num_external_tokens, preempted=one.resumed
                )

    def _reject_stuck_head(self) -> None:
        if not len(self.waiting.holding) and not self.kept and not self._freed_later:
            super()._reject_stuck_head()

    # ---------------------------------------------------------------- a step's output

    def report(self, transfers: Transfers) -> None:
        """What the executor reports with the result that is processed next."""
        self._transfers = transfers

    def update(self, step: Step, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> None:
        """See :class:`Scheduler`."""
        if step.total_tokens:
            self._num_processed_steps += 1
            while self._freed_later and self._freed_later[0][0] <= self._num_processed_steps:
                self.kv_cache.pool.free(self._freed_later.popleft()[1])
        transfers, self._transfers = self._transfers, Transfers()
        spoilt = self._handle_failures(step, transfers)
        for request, token_ids in zip(step.requests, tokens, strict=True):
            if request in spoilt:
                request.drop_samples += bool(token_ids)
                self.encoder.drop_outputs(request)
        super().update(step, tokens, num_drafts)
        if not self.recomputes_failed_loads:
            for request in sorted(spoilt, key=lambda one: one.request_id):  # vLLM has a set of ids
                if not request.is_finished:
                    self._withdraw(request)
                    self._finish(request, FinishReason.ERROR, "a part of its KV cache could not be loaded")
        self.connector.progressed(transfers)
        for request_id in transfers.received:
            request_or_none = self.live.get(request_id)
            if request_or_none and request_or_none.status is RequestStatus.WAITING_FOR_REMOTE_KV:
                self._received.add(request_or_none)
            else:
                self._release(request_id)
        for request_id in transfers.sent:
            self._release(request_id)

    def _release(self, request_id: str) -> None:
        """Nobody needs the blocks of an ended request any more."""
        request = self.kept.pop(request_id)
        self._free(request)

    def _handle_failures(self, step: Step, transfers: Transfers) -> dict[Request, None]:
        """Take back what did not arrive; return the requests whose output of ``step`` is worth nothing, in order."""
        spoilt: dict[Request, None] = {}
        for request_id in transfers.failed:
            request = self.live.get(request_id)
            if request is None or request.status is not RequestStatus.WAITING_FOR_REMOTE_KV:
                continue
            if self.recomputes_failed_loads:
                request.num_computed_tokens = 0
                self._failed.add(request)
            else:
                spoilt[request] = None
        if not transfers.invalid_blocks:
            return spoilt
        if len(self.kv_cache.groups) > 1:
            raise ValueError("invalid blocks: expected failed requests where there are several cache groups")
        loading = [one for one in self.waiting.holding if one.status is RequestStatus.WAITING_FOR_REMOTE_KV]
        num_scheduled = dict(zip(step.requests, step.num_tokens, strict=True))
        block_size, invalid = self.kv_cache.groups[0].block_size, transfers.invalid_blocks
        loads, _ = valid_prefixes(loading, invalid, num_scheduled, block_size)
        runs, worthless = valid_prefixes(self.running, invalid, num_scheduled, block_size)
        for request, num_tokens in (loads | runs).items():
            request.num_computed_tokens = num_tokens
        if self.recomputes_failed_loads:
            self._failed |= loads.keys()
            return spoilt | dict.fromkeys(runs)
        self.kv_cache.pool.drop_keys(worthless)
        return spoilt | dict.fromkeys(loads) | dict.fromkeys(runs)
