"""The scheduler: which requests compute how many tokens in the next step.

One readable schedule()/update() pair that follows the specification, sections 5 to 8, rule by rule, synchronous and
asynchronous. It is the truth; anything faster must equal it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_metrics import BlockMetrics
from kvtwin.engine.chunks import Candidate, ChunkLimit, Cutter, PrefillLookahead, cut_to_budget, wait_for_budget
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.draft_verification import make_draft_verification
from kvtwin.engine.encoder_cache import make_encoder
from kvtwin.engine.executor import Admission, AdmissionStop, Step
from kvtwin.engine.forking import NoForks
from kvtwin.engine.hit import Hit
from kvtwin.engine.kv_cache import make_kv_cache
from kvtwin.engine.observer import Observer
from kvtwin.engine.prefill_pacing import PrefillPacing
from kvtwin.engine.request import FinishReason, Request, RequestStatus
from kvtwin.engine.retention import make_retention
from kvtwin.engine.state_chunks import NoStates, StateChunks
from kvtwin.engine.statistics import EngineStatistics
from kvtwin.engine.waiting_queue import make_waiting_queue


class Scheduler:
    """Running and waiting requests over one KV cache.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a live request is in exactly one of ``running`` and
    ``waiting``; only running requests and pins of the retention policy hold blocks; a step never schedules more
    tokens than the budget; at most ``max_running_requests`` run.
    """

    def __init__(self, config: EngineConfig, keys: KeySpace | None = None) -> None:
        """``keys`` may be those of other engines with the same ``config.key_settings``."""
        self.config = config
        self.keys = keys or KeySpace(*config.key_settings)
        self.kv_cache = make_kv_cache(config, self.keys)
        pool = self.kv_cache.pool
        self.block_metrics = BlockMetrics(config.kv_cache_metrics_sample) if config.kv_cache_metrics else None
        """Lifetimes of blocks, if they are measured: whoever has a clock tells it the time."""
        if self.block_metrics:
            pool.listeners.append(self.block_metrics)
        self.retention = make_retention(config.retention, pool)
        self.observer = Observer()
        self.running: list[Request] = []
        self.waiting = make_waiting_queue(config.scheduling_policy)
        self.statistics = EngineStatistics()
        self.live: dict[str, Request] = {}
        """Requests that arrived and have not ended, by id."""
        self._finished_since_step: list[Request] = []
        self._ended: list[Request] = []
        self._preempted_since_step: list[Request] = []
        self._forks = self.kv_cache.forks if config.parallel_sampling == "fork" else NoForks()
        self._pacing = PrefillPacing(config.prefill_schedule_interval)
        self._drafts = make_draft_verification(config, self.statistics.speculation)
        self._chunk_limit = ChunkLimit(config)
        self._states = StateChunks(config) if config.caches_states else NoStates()
        self._lookahead = PrefillLookahead(config.prefill_lookahead_tokens)
        self.encoder = make_encoder(config, self.statistics.encoder)
        self._cutters: Sequence[Cutter] = (
            self._pacing.cut,
            self._drafts.cut,
            self._chunk_limit.cut,
            cut_to_budget if config.enable_chunked_prefill else wait_for_budget,
            self._states.cut,
            self.encoder.cut,
            self._lookahead.cut,
        )

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` all that happens to requests from now on."""
        self.observer = observer
        self.kv_cache.observe(observer)

    def pace_prefills(self, pacing: PrefillPacing) -> None:
        """Let ``pacing`` say which steps may prefill."""
        self._pacing = pacing
        self._cutters = (pacing.cut, *self._cutters[1:])

    # ---------------------------------------------------------------- requests come and go

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait for admission, or reject it at once if it can never finish.

        Raises ValueError when a live request has the same id.
        """
        if request.request_id in self.live:
            raise ValueError(f"request id {request.request_id!r}: a request with this id is still running")
        reason = None if self.config.vllm_strict else self._never_fits(request)
        if reason:
            self.end(request, FinishReason.REJECTED, reason)
            return
        self.live[request.request_id] = request
        self.waiting.append(request)
        self.observer.arrived(request)

    def expect(self, request: Request) -> bool:
        """Let ``request`` live, which will arrive later and waits elsewhere; False if it might not be taken then.

        Whoever has its id meanwhile is not taken.
        """
        if request.request_id in self.live or self._never_fits(request):
            return False
        self.live[request.request_id] = request
        return True

    def abort(self, request_id: str) -> Request | None:
        """End a live request and free its blocks; None if there is none."""
        request = self.live.get(request_id)
        if request is not None:
            self._withdraw(request)
            self._finish(request, FinishReason.ABORT)
        return request

    def _withdraw(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes and pins; False if running requests hold blocks, unless they are to be preempted.

        Preempted this way, requests start again with their outputs so far; outputs in flight are dropped.
        """
        while reset_running_requests and self.running:
            request = self.running.pop()
            request.drop_samples = request.num_in_flight_samples
            self._preempt(request, needed_by=None)
            self.encoder.drop_outputs(request)
        if not self.running:
            self.retention.release_all()
        done = self.kv_cache.reset_prefix_cache()
        if done:
            self.statistics.recent_hit_rate.clear()
        return done

    def start_counting(self) -> None:
        """Begin all counts at 0: what came before was to warm up. Lookups of such requests are never counted."""
        self.statistics.clear()
        self.kv_cache.pool.num_evictions = 0
        self.retention.num_forced_releases = self.retention.num_pressure_releases = 0
        if self.block_metrics:
            self.block_metrics.clear()
        for memory in self.kv_cache.host_memory:
            memory.pool.num_saved_blocks = memory.pool.num_loaded_blocks = 0
        if self.kv_cache.swap:
            self.kv_cache.swap.num_fallbacks = 0

    def has_requests(self) -> bool:
        """Whether there is anything to schedule, or finished requests to report."""
        return bool(self.live or self._finished_since_step)

    def take_ended(self) -> list[Request]:
        """Requests that ended since the last call, for whatever reason, in order."""
        ended, self._ended = self._ended, []
        return ended

    # ---------------------------------------------------------------- one step

    def schedule(self) -> Step:
        """Decide the next step (specification, section 5); its tokens count as computed from now on."""
        step = Step(self.statistics.num_steps)
        self.statistics.num_steps += 1
        self.kv_cache.start_step()
        self._chunk_limit.start_step(len(self.running) + len(self.waiting))
        self._pacing.start_step(self.running)
        self.encoder.start_step()
        num_preempted_before = len(self._preempted_since_step)
        self._schedule_running(step)
        preempts = len(self._preempted_since_step) > num_preempted_before
        step.admission_stop = AdmissionStop.PREEMPTION if preempts else self._schedule_waiting(step)
        self._pacing.after_step(step)
        if not step.requests and not preempts and not self.config.vllm_strict:
            self._reject_stuck_head()
        step.preempted, self._preempted_since_step = self._preempted_since_step, []
        step.finished, self._finished_since_step = self._finished_since_step, []
        step.saves, step.loads = self.kv_cache.take_host_copies()
        step.copies, step.replaced_blocks = self._forks.take_copies()
        step.copies += self.kv_cache.take_copies()
        step.dropped_images = self.encoder.take_dropped()
        self._drafts.claim(step)
        self._advance(step)
        self._drafts.expect(step)
        self._record_lookups(step)
        self.observer.scheduled(step)
        return step

    def _schedule_running(self, step: Step) -> None:
        """Give running requests their tokens, in order; preempt if blocks are missing (specification, section 5.1)."""
        budget, limit, holds_prefill = self.config.token_budget, self._drafts.limit, self._pacing.holds
        index = 0
        while index < len(self.running):
            budget_left = limit(budget - step.total_tokens, step)
            if budget_left <= 0:
                break
            request = self.running[index]
            index += 1
            if holds_prefill and request.is_prefill_chunk:
                continue
            num_new_tokens = self._num_tokens_to_run(request, budget_left)
            if num_new_tokens <= 0:
                continue
            new_blocks = self.kv_cache.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                if not self.retention.give_up(request, is_alone=len(self.running) == 1):
                    victim = self._choose_victim()
                    if not self._can_preempt(victim):
                        return
                    index -= self.running.index(victim) < index
                    self.running.remove(victim)
                    if victim in step.requests:
                        self.encoder.take_back(victim, step)
                        step.remove(victim)
                        self.kv_cache.mark_phantoms(victim)
                    self._preempt(victim, needed_by=request)
                    if victim is request:
                        break
                new_blocks = self.kv_cache.allocate_slots(request, num_new_tokens)
            if new_blocks is None:
                continue
            step.add(request, num_new_tokens)
            self.encoder.schedule(request, step)
            if any(new_blocks):
                step.new_blocks.append((request, new_blocks))

    def _schedule_waiting(self, step: Step) -> AdmissionStop:
        """Admit waiting requests in the order of their queue; return why no more."""
        passed_over: list[Request] = []
        stop = None
        while stop is None:
            stop = self._admit_next(step, passed_over)
        for request in reversed(passed_over):
            self.waiting.put_back(request)
        self._pacing.after_admission(self.waiting)
        return stop

    def _admit_next(self, step: Step, passed_over: list[Request]) -> AdmissionStop | None:
        """Admit one more request, or have one make room for it; else why not: find a candidate, cut, place."""
        candidate = self._candidate(step, passed_over)
        if isinstance(candidate, AdmissionStop):
            return candidate
        num_new_tokens = self._chunk(candidate)
        if num_new_tokens in (AdmissionStop.ENCODER, AdmissionStop.LOOKAHEAD):
            self._pass_over(candidate.request, passed_over)
            return None
        if isinstance(num_new_tokens, AdmissionStop):
            return num_new_tokens
        return self._place(candidate, num_new_tokens)

    def _pass_over(self, request: Request, passed_over: list[Request]) -> None:
        """Leave the head of the queue waiting, and let those behind it be tried."""
        request.is_deferred = True
        passed_over.append(self.waiting.pop())

    def _candidate(self, step: Step, passed_over: list[Request]) -> Candidate | AdmissionStop:
        """The first in the queue who may run now, with what it hits. Those before it go to ``passed_over``."""
        while self.waiting:
            if len(self.running) >= self.config.max_running_requests:
                return AdmissionStop.SEATS
            budget_left = self._drafts.limit(self.config.token_budget - step.total_tokens, step)
            if budget_left <= 0:
                return AdmissionStop.BUDGET
            request = self.waiting.peek()
            if self._must_skip(request) or self._forks.must_wait(request, step):
                self._pass_over(request, passed_over)
                continue
            reason = None if self.config.vllm_strict else self.kv_cache.why_never_fits(request, request.num_tokens)
            if reason is None:
                return Candidate(request, self._find_hit(request, step), step, budget_left)
            self.waiting.pop()
            self._finish(request, FinishReason.CAPACITY, reason)
        return AdmissionStop.NOBODY_WAITS

    def _find_hit(self, request: Request, step: Step) -> Hit:
        return self._forks.find_hit(request, step) or self.kv_cache.find_hit(request)

    def _chunk(self, candidate: Candidate) -> int | AdmissionStop:
        """How many tokens the candidate computes in this step: what it lacks, cut by one rule after the other."""
        num_tokens = candidate.request.num_tokens - candidate.hit.num_tokens
        for cut in self._cutters:
            left = cut(candidate, num_tokens)
            if isinstance(left, AdmissionStop):
                return left
            num_tokens = left
        return num_tokens

    def _place(self, candidate: Candidate, num_new_tokens: int) -> AdmissionStop | None:
        """Admit the candidate if its blocks are free. If not, a pin may make room: then it can be tried again."""
        request, hit, step, _ = candidate
        new_blocks = self.kv_cache.allocate_slots(
            request,
            num_new_tokens,
            hit,
            num_reserved_blocks=self.config.watermark_blocks if self.running else 0,
            reserve_full_sequence=self.config.scheduler_reserve_full_isl,
        )
        if new_blocks is not None:
            self.waiting.pop()
            self._admit(step, request, hit, num_new_tokens)
            return None
        self.encoder.release(request)
        if self.kv_cache.must_wait(hit) or not self.retention.give_up(request, is_alone=not self.running):
            return AdmissionStop.MEMORY
        return None

    def _num_tokens_to_run(self, request: Request, budget_left: int) -> int:
        """Tokens that a running request gets if there are blocks; 0 or less is none (specification, section 5.1)."""
        num_computed_tokens, num_placeholders = request.num_computed_tokens, request.num_placeholders
        if num_placeholders and num_computed_tokens + 2 - num_placeholders >= request.max_total_tokens:
            return 0
        num_expected_tokens = request.num_tokens + request.num_placeholders + request.num_drafts
        num_new_tokens = min(
            num_expected_tokens - num_computed_tokens,
            self._chunk_limit.num_tokens,
            budget_left,
            self.config.max_model_len - 1 - num_computed_tokens,
        )
        num_new_tokens = self._states.fit(request, num_computed_tokens, num_new_tokens)
        num_new_tokens = self.encoder.fit(request, num_computed_tokens, num_new_tokens)
        return self._lookahead.fit(request, num_computed_tokens, num_new_tokens)

    def _choose_victim(self) -> Request:
        """The request to preempt (specification, section 6.1): the newest, or the least important of the newest."""
        if self.config.scheduling_policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda request: (request.priority, request.arrival_ns))

    def _can_preempt(self, victim: Request) -> bool:
        """Whether preempting ``victim`` would free its blocks now."""
        return True

    def _preempt(self, request: Request, needed_by: Request | None) -> None:
        """Take everything from ``request``, which left ``running``, and let it wait (specification, section 6.2).

        It makes room for ``needed_by``, which may be itself; None: the prefix cache is reset, and nothing is kept.
        """
        self.observer.preempted(request, needed_by)
        self._free(request, to_host=needed_by is not None)
        self.encoder.release(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_placeholders = 0
        request.num_drafts = 0
        request.num_preemptions += 1
        self.statistics.num_preemptions += 1
        self.waiting.put_back(request)
        self._preempted_since_step.append(request)

    def _must_skip(self, request: Request) -> bool:
        """Whether ``request`` cannot be admitted now, though one after it might."""
        if request.num_in_flight_samples > request.drop_samples:
            return True
        if request.lora is None:
            return False
        active = {running.lora for running in self.running if running.lora}
        return len(active) >= self.config.max_loras and request.lora not in active

    def _admit(self, step: Step, request: Request, hit: Hit, num_new_tokens: int) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        request.status = RequestStatus.RUNNING
        request.is_deferred = False
        request.num_computed_tokens = hit.num_tokens
        self.running.append(request)
        self.retention.admitted(request)
        step.add(request, num_new_tokens)
        self.encoder.schedule(request, step)
        tables = [list(table) for table in request.block_tables]
        step.admitted.append(
            Admission(
                request,
                hit.num_tokens,
                tables,
                resumed,
                hit.is_swapped or hit.is_held,
                hit.num_external_tokens,
                hit.is_fork,
            )
        )
        self.statistics.phantom_hit_tokens += hit.num_phantom_tokens
        self.statistics.num_forks += hit.is_fork

    def _record_lookups(self, step: Step) -> None:
        if self.config.enable_prefix_caching:
            self.statistics.record_admissions(step.admitted, asks_host=self.kv_cache.offload is not None)

    def _advance(self, step: Step) -> None:
        """Count the step's tokens as computed and expect its samples (specification, sections 5.3 and 8.2)."""
        is_async = self.config.async_scheduling
        for request, num_tokens in zip(step.requests, step.num_tokens, strict=True):
            start = request.num_computed_tokens
            end = request.num_computed_tokens = start + num_tokens
            request.num_tokens_in_flight += num_tokens
            samples = end >= request.num_tokens + request.num_placeholders
            request.is_prefill_chunk = not samples
            step.samples.append(samples)
            if samples:
                request.num_in_flight_samples += 1
                request.num_placeholders += is_async
            if start < request.num_highest_computed_tokens:
                self.statistics.num_recomputed_tokens += min(end, request.num_highest_computed_tokens) - start
            if end > request.num_highest_computed_tokens:
                request.num_highest_computed_tokens = end
        self.statistics.num_scheduled_tokens += step.total_tokens
        self.statistics.num_block_copies += len(step.copies)

    # ---------------------------------------------------------------- a step's output

    def update(self, step: Step, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> None:
        """Deliver the output ``tokens`` of ``step``'s requests; end those that are done (specification, section 7).

        ``num_drafts`` says how many drafts were made behind each request's output, as in
        :class:`kvtwin.engine.executor.StepResult`.
        """
        is_async, drafts = self.config.async_scheduling, self._drafts
        num_ended = 0
        for request, num_tokens, token_ids in zip(step.requests, step.num_tokens, tokens, strict=True):
            request.num_tokens_in_flight -= num_tokens
            if request.status is RequestStatus.FINISHED:
                continue
            self.encoder.processed(request)
            if not token_ids:
                continue
            request.num_in_flight_samples -= 1
            if request.drop_samples:
                request.drop_samples -= 1
                continue
            was_running = request.status is RequestStatus.RUNNING
            if was_running and is_async:
                request.num_placeholders -= 1
            drafts.settle(step, request, len(token_ids))
            num_expected_tokens = request.num_tokens + len(token_ids)
            reason = self._append_tokens(request, token_ids)
            if was_running:
                request.num_computed_tokens -= num_expected_tokens - request.num_tokens
                self.kv_cache.register(request, request.num_computed_tokens - request.num_tokens_in_flight)
            if reason:
                if not was_running:
                    self.waiting.remove(request)
                self._finish(request, reason)
                num_ended += was_running
        drafts.receive(step, num_drafts)
        if num_ended:
            self.running = [request for request in self.running if request.status is RequestStatus.RUNNING]
        for request, message in self.encoder.take_mismatched().items():
            if request.status is not RequestStatus.FINISHED:
                self._withdraw(request)
                self._finish(request, FinishReason.ERROR, message)

    def _append_tokens(self, request: Request, token_ids: Sequence[int]) -> FinishReason | None:
        """Append output tokens until one of them ends the request."""
        for token_id in token_ids:
            request.content.append((token_id,))
            request.num_tokens += 1
            if token_id == request.eos_token_id or token_id in request.stop_token_ids:
                return FinishReason.STOP
            if request.num_tokens >= self.config.max_model_len or request.num_tokens >= request.max_total_tokens:
                return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason, message: str = "") -> None:
        self.retention.keep(request)
        self._free(request)
        self.encoder.release(request)
        del self.live[request.request_id]
        self._finished_since_step.append(request)
        self.end(request, reason, message)

    def _free(self, request: Request, *, to_host: bool = False) -> None:
        self.kv_cache.free(request, to_host=to_host)

    def end(self, request: Request, reason: FinishReason, message: str = "") -> None:
        """Count a request as ended that the engine does not hold any more."""
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_message = message
        if reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            self.statistics.num_rejected += 1
        self._ended.append(request)
        self.observer.ended(request)

    # ---------------------------------------------------------------- what vLLM would wait for for ever

    def _never_fits(self, request: Request) -> str | None:
        """Why ``request`` can never finish, however empty the cache is; None if it can."""
        if request.lora is not None and self.config.max_loras == 0:
            return f"needs LoRA adapter {request.lora.name}, but max_loras is 0"
        if reason := self.encoder.why_never_fits(request):
            return reason
        ends_by_length = request.eos_token_id is None and not request.stop_token_ids
        num_slots = request.num_prompt_tokens + (request.max_tokens - 1 if ends_by_length else 0)
        num_slots = min(num_slots, self.config.max_model_len - 1)
        return self.kv_cache.why_never_fits(request, num_slots)

    def _reject_stuck_head(self) -> None:
        """End the head of the queue if even the idle engine cannot admit it."""
        if self.running or not self.waiting:
            return
        head = self.waiting.peek()
        if self._must_skip(head) or head in self.encoder.mismatched:
            return
        self.waiting.pop()
        self._finish(head, *self.why_stuck(head))

    def why_stuck(self, head: Request) -> tuple[FinishReason, str]:
        """How a request ends that even the idle engine cannot admit."""
        message = f"{head.num_tokens} tokens cannot be computed in one step of {self.config.token_budget}"
        return FinishReason.CAPACITY if head.num_output_tokens else FinishReason.REJECTED, message
