"""SGLang's scheduler: prefill before decode, one prompt in chunks at a time, and retraction when memory runs short."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_metrics import BlockMetrics
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.encoder_cache import EncoderCache, NoEncoder
from kvtwin.engine.executor import Admission, AdmissionStop, Step
from kvtwin.engine.observer import Observer
from kvtwin.engine.request import FinishReason, Request, RequestStatus
from kvtwin.engine.retention import FreeAtOnce, Retention
from kvtwin.engine.sglang.admission import RETRACT_STEPS, NewTokenRatio, PrefillBudget
from kvtwin.engine.sglang.limits import clip_output, refusal
from kvtwin.engine.sglang.radix_cache import RadixCache
from kvtwin.engine.sglang.retraction import retraction_order
from kvtwin.engine.sglang.schedule_policy import SCHEDULE_POLICIES
from kvtwin.engine.sglang.settings import SglangSettings
from kvtwin.engine.statistics import EngineStatistics


class SglangScheduler:
    """Requests that wait, that prefill, and that decode, over one radix cache.

    Invariants (:mod:`kvtwin.engine.sglang.invariants`): a live request is in exactly one of ``running`` and
    ``waiting``; those that run hold pages and nobody else does; ``decoding``, ``prefilled`` and ``chunked`` are parts
    of ``running`` without a request in common.
    """

    block_metrics: BlockMetrics | None = None
    """Lifetimes of pages are not measured."""

    def __init__(self, config: EngineConfig, settings: SglangSettings, keys: KeySpace | None = None) -> None:
        """``keys`` may be those of other servers with the same ``config.key_settings``."""
        self.config = config
        self.settings = settings
        self.keys = keys or KeySpace(*config.key_settings)
        self.kv_cache = RadixCache(config.num_blocks, config.block_size, settings.radix_eviction_policy)
        self.retention: Retention = FreeAtOnce()
        self.encoder: EncoderCache | NoEncoder = NoEncoder()
        self.observer = Observer()
        self.statistics = EngineStatistics()
        self.live: dict[str, Request] = {}
        """Requests that arrived and have not ended, by id."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        """All that hold pages, in the order in which they were admitted."""
        self.decoding: list[Request] = []
        self.prefilled: list[Request] = []
        """Those of the latest step, if it was a prefill: they decode from the next one on."""
        self.chunked: Request | None = None
        """The one whose prompt is computed in part."""
        self.ratio = NewTokenRatio(settings.schedule_conservativeness)
        self._policy = SCHEDULE_POLICIES[settings.schedule_policy](self.kv_cache, settings.radix_eviction_policy)
        self._admits_nobody = False
        """Whether the latest pass found no room, and no running request has left since."""
        self._unpublished: set[Request] = set()
        """Those whose whole prompt was scheduled, and whose first token is still to come."""
        self._finished_since_step: list[Request] = []
        self._retracted_since_step: list[Request] = []
        self._ended: list[Request] = []

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` what happens to requests from now on."""
        self.observer = observer

    # ---------------------------------------------------------------- requests come and go

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait, or reject it at once. ValueError: a live request has the same id."""
        if request.request_id in self.live:
            raise ValueError(f"request id {request.request_id!r}: a request with this id is still running")
        size = self.config.max_model_len, self.kv_cache.pool.num_usable_blocks * self.config.block_size
        reason = refusal(request, *size, self.config.block_size)
        if reason:
            self.end(request, FinishReason.REJECTED, reason)
            return
        clip_output(request, *size, self.config.block_size)
        self.live[request.request_id] = request
        self.waiting.append(request)
        self.observer.arrived(request)

    def start_counting(self) -> None:
        """Begin all counts at 0: what came before was to warm up."""
        self.statistics.clear()
        self.kv_cache.pool.num_evictions = 0

    def has_requests(self) -> bool:
        """Whether there is anything to schedule, or finished requests to report."""
        return bool(self.live or self._finished_since_step)

    def take_ended(self) -> list[Request]:
        """Requests that ended since the last call, in order."""
        ended, self._ended = self._ended, []
        return ended

    # ---------------------------------------------------------------- one step

    def schedule(self) -> Step:
        """Decide the next step: a prefill if anybody can be admitted or is in chunks, else a decode."""
        step = Step(self.statistics.num_steps)
        self.statistics.num_steps += 1
        self._settle_prefill()
        step.admission_stop = self._prefill(step)
        if not step.requests:
            self._decode(step)
        step.preempted, self._retracted_since_step = self._retracted_since_step, []
        step.finished, self._finished_since_step = self._finished_since_step, []
        self._advance(step)
        self.statistics.record_admissions(step.admitted, asks_host=False)
        self.observer.scheduled(step)
        return step

    def _settle_prefill(self) -> None:
        """What the latest prefill computed is hit by others; those whose prompt is complete decode from now on."""
        if self.chunked:
            self.kv_cache.publish(self.chunked, self.chunked.num_computed_tokens)
            self._admits_nobody = False
        num_before = len(self.decoding) + len(self.prefilled)
        self.decoding = [one for one in (*self.decoding, *self.prefilled) if one.status is RequestStatus.RUNNING]
        self.prefilled = []
        if len(self.decoding) < num_before:
            self._admits_nobody = False

    def _prefill(self, step: Step) -> AdmissionStop:
        """Schedule the next chunk of a prompt and admit waiting requests; return why no more."""
        if not self.decoding:
            self._admits_nobody = False
        if not self.waiting and not self.chunked:
            return AdmissionStop.NOBODY_WAITS
        if self._admits_nobody and not self.chunked:
            return AdmissionStop.MEMORY
        num_seats = self.config.max_num_seqs - len(self.running)
        if num_seats <= 0 and not self.chunked:
            self._admits_nobody = True
            return AdmissionStop.SEATS
        self._policy.sort(self.waiting)
        budget = PrefillBudget(
            self.kv_cache.pool,
            self.decoding,
            self.ratio.now,
            self.settings.max_prefill_tokens,
            self.settings.chunked_prefill_size,
        )
        num_tokens: dict[Request, int] = {}
        if self.chunked:
            self._continue(self.chunked, budget, num_tokens)
        stop, admitted = self._admit(budget, num_tokens, num_seats)
        self.waiting = [one for one in self.waiting if one not in admitted]
        self._allocate(step, num_tokens, admitted)
        self.prefilled = [one for one in num_tokens if one is not self.chunked]
        self._unpublished.update(self.prefilled)
        return stop

    def _continue(self, request: Request, budget: PrefillBudget, num_tokens: dict[Request, int]) -> None:
        missing = request.num_tokens - request.num_computed_tokens
        chunk = num_tokens[request] = budget.next_chunk(missing)
        budget.admit(request, chunk, is_last_chunk=chunk == missing)
        if chunk == missing:
            self.chunked = None

    def _admit(
        self, budget: PrefillBudget, num_tokens: dict[Request, int], num_seats: int
    ) -> tuple[AdmissionStop, dict[Request, int]]:
        """Admit from the head of the queue on, until one does not fit; return why, and what each of them hit."""
        admitted: dict[Request, int] = {}
        for request in self.waiting:
            if not budget.has_compute():
                return AdmissionStop.BUDGET, admitted
            if len(admitted) >= num_seats:
                self._admits_nobody = True
                return AdmissionStop.SEATS, admitted
            node, num_hit_tokens = self.kv_cache.find_hit(request)
            self.kv_cache.adopt(request, node)
            has_memory = budget.fits(request, num_hit_tokens)
            chunk = self._first_chunk(request, num_hit_tokens, budget, num_tokens) if has_memory else 0
            if chunk <= 0:
                self.kv_cache.release(request)
                if has_memory:
                    return AdmissionStop.BUDGET, admitted
                self._admits_nobody = bool(num_tokens or self.decoding)
                return AdmissionStop.MEMORY, admitted
            missing = request.num_tokens - num_hit_tokens
            admitted[request], num_tokens[request] = num_hit_tokens, chunk
            budget.admit(request, chunk, is_last_chunk=chunk == missing)
            if chunk < missing:
                self.chunked = request
            if not budget.has_memory():
                self._admits_nobody = True
                return AdmissionStop.MEMORY, admitted
        return AdmissionStop.NOBODY_WAITS, admitted

    @staticmethod
    def _first_chunk(
        request: Request, num_hit_tokens: int, budget: PrefillBudget, num_tokens: dict[Request, int]
    ) -> int:
        """Its tokens in this batch. A server that does not split prompts lets the first be as long as it is."""
        chunk = budget.first_chunk(request, num_hit_tokens)
        is_whole = budget.chunk_tokens_left is None
        return 0 if is_whole and num_tokens and chunk >= budget.input_tokens_left else chunk

    def _allocate(self, step: Step, num_tokens: dict[Request, int], admitted: dict[Request, int]) -> None:
        """Evict for the whole batch, then hand out pages. Where pages hold many tokens, each counts one page more."""
        page_tokens = self.config.block_size
        margin = len(num_tokens) * page_tokens if page_tokens > 1 else 0
        self.kv_cache.pool.make_room(sum(num_tokens.values()) + margin)
        for request, count in num_tokens.items():
            if request in admitted:
                resumed = request.status is RequestStatus.PREEMPTED
                request.status = RequestStatus.RUNNING
                request.num_computed_tokens = admitted[request]
                self.running.append(request)
            pages = self.kv_cache.extend(request, request.num_computed_tokens + count)
            step.add(request, count)
            if request in admitted:
                tables = [self.kv_cache.holdings[request].pages.tolist()]
                step.admitted.append(Admission(request, admitted[request], tables, resumed))
            elif pages:
                step.new_blocks.append((request, [list(pages)]))

    def _decode(self, step: Step) -> None:
        """One token for each who decodes; retract some if memory is missing."""
        finishing = [one for one in self.decoding if self._ends_in_flight(one)]
        batch = [one for one in self.decoding if one not in finishing] if finishing else self.decoding
        if not batch:
            return
        if not self._has_memory(batch):
            if finishing:  # what they hold is free soon
                self._admits_nobody = False
                return
            batch = self._retract(batch)
            self._admits_nobody = False
        else:
            self.ratio.decoded()
        if not batch:
            return
        self.kv_cache.pool.make_room(len(batch) * self.config.block_size)
        for request in batch:
            pages = self.kv_cache.extend(request, request.num_computed_tokens + 1)
            step.add(request, 1)
            if pages:
                step.new_blocks.append((request, [list(pages)]))

    @staticmethod
    def _ends_in_flight(request: Request) -> bool:
        """Whether a step in flight delivers its last token, as its limit tells."""
        return request.num_placeholders > 0 and (
            request.num_tokens + request.num_placeholders >= request.max_total_tokens
        )

    def _has_memory(self, batch: Sequence[Request]) -> bool:
        """Whether each gets a page who needs one, if need be by evicting."""
        page_tokens = self.config.block_size
        needed_tokens = sum(one.num_computed_tokens % page_tokens == 0 for one in batch) * page_tokens
        self.kv_cache.pool.make_room(needed_tokens)
        return self.kv_cache.pool.num_free_tokens >= needed_tokens

    def _retract(self, batch: Sequence[Request]) -> list[Request]:
        """Retract one, and more while memory is missing; return who stays. The last who cannot stay is ended."""
        kept = retraction_order(batch)
        retracted: list[Request] = []
        while len(kept) > 1 and (not retracted or not self._has_memory(kept)):
            retracted.append(kept.pop())
            self._let_go(retracted[-1], kept)
        if len(kept) == 1 and not self._has_memory(kept):
            last = kept.pop()
            self.running.remove(last)
            message = "no memory for another token, though nobody else decodes"
            self._finish(last, FinishReason.CAPACITY, message, publish=False)
        self.ratio.retracted(kept)
        self.waiting += retracted
        staying = set(kept)
        self.decoding = [one for one in self.decoding if one in staying]
        return kept

    def _let_go(self, request: Request, kept: Sequence[Request]) -> None:
        """Take everything from a request, of which nothing stays in the tree but what was there before."""
        self.observer.preempted(request, None)
        self.running.remove(request)
        self._unpublished.discard(request)
        self.kv_cache.release(request)
        self.kv_cache.pool.make_room(len(kept) * RETRACT_STEPS)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_placeholders = 0
        request.drop_samples = request.num_in_flight_samples
        request.num_preemptions += 1
        self.statistics.num_preemptions += 1
        self._retracted_since_step.append(request)

    def _advance(self, step: Step) -> None:
        """Count the step's tokens as computed and expect its samples."""
        for request, num_tokens in zip(step.requests, step.num_tokens, strict=True):
            start = request.num_computed_tokens
            end = request.num_computed_tokens = start + num_tokens
            request.num_tokens_in_flight += num_tokens
            samples = end >= request.num_tokens + request.num_placeholders
            request.is_prefill_chunk = not samples
            step.samples.append(samples)
            if samples:
                request.num_in_flight_samples += 1
                request.num_placeholders += 1
            if start < request.num_highest_computed_tokens:
                self.statistics.num_recomputed_tokens += min(end, request.num_highest_computed_tokens) - start
            request.num_highest_computed_tokens = max(end, request.num_highest_computed_tokens)
        self.statistics.num_scheduled_tokens += step.total_tokens

    # ---------------------------------------------------------------- a step's output

    def update(self, step: Step, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> None:
        """Deliver the output ``tokens`` of ``step``'s requests; end those that are done, and publish whole prompts."""
        num_ended = 0
        for request, num_tokens, token_ids in zip(step.requests, step.num_tokens, tokens, strict=True):
            request.num_tokens_in_flight -= num_tokens
            if request.status is RequestStatus.FINISHED or not token_ids:
                continue
            request.num_in_flight_samples -= 1
            if request.drop_samples:
                request.drop_samples -= 1
                continue
            request.num_placeholders -= 1
            reason = self._append_token(request, token_ids[0])
            if reason:
                self._unpublished.discard(request)
                self._finish(request, reason)
                num_ended += 1
            elif request in self._unpublished:
                self._unpublished.remove(request)
                self.kv_cache.publish(request, request.num_tokens - 1)
        if num_ended:
            self.running = [one for one in self.running if one.status is RequestStatus.RUNNING]

    @staticmethod
    def _append_token(request: Request, token_id: int) -> FinishReason | None:
        request.content.append((token_id,))
        request.num_tokens += 1
        if token_id == request.eos_token_id or token_id in request.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_tokens >= request.max_total_tokens else None

    def _finish(self, request: Request, reason: FinishReason, message: str = "", *, publish: bool = True) -> None:
        """Free what it holds; others can hit all of it that was computed."""
        num_published = min(request.num_computed_tokens, request.num_tokens) if publish else 0
        self.kv_cache.release(request, num_published)
        del self.live[request.request_id]
        self._finished_since_step.append(request)
        if not self.live:
            self.ratio.idle()
        self.end(request, reason, message)

    def end(self, request: Request, reason: FinishReason, message: str = "") -> None:
        """Count a request as ended that the engine does not hold any more."""
        self.kv_cache.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_message = message
        if reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            self.statistics.num_rejected += 1
        self._ended.append(request)
        self.observer.ended(request)
