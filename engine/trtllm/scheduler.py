"""TensorRT-LLM's scheduling of one step: capacity first, then tokens; and what becomes of its output."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_metrics import BlockMetrics
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.encoder_cache import EncoderCache, NoEncoder
from kvtwin.engine.executor import Admission, AdmissionStop, Step
from kvtwin.engine.observer import Observer
from kvtwin.engine.request import FinishReason, Request, RequestStatus
from kvtwin.engine.retention import FreeAtOnce, Retention
from kvtwin.engine.statistics import EngineStatistics
from kvtwin.engine.token_marks import TokenMarks
from kvtwin.engine.trtllm.block_manager import BlockManager, CachedSequence
from kvtwin.engine.trtllm.capacity import POLICIES, CapacityPolicy
from kvtwin.engine.trtllm.chunking import Chunker, Context, cut_at_block, make_chunker
from kvtwin.engine.trtllm.demand import StepDemand
from kvtwin.engine.trtllm.settings import TrtllmSettings


class _Clock(FreeAtOnce):
    """Tells the cache the time, by which priorities expire. Sessions hold nothing between turns."""

    def __init__(self, cache: BlockManager) -> None:
        super().__init__()
        self._cache = cache

    def advance_to(self, now_ns: int) -> None:
        self._cache.now_ns = now_ns


class TrtllmScheduler:
    """Requests in order of priority and arrival: those that hold blocks, and those that do not.

    Invariants (checked by :mod:`kvtwin.engine.trtllm.invariants`): a live request is in exactly one of ``running`` and
    ``waiting``, both in order; running requests, and only they, have a sequence with blocks for all tokens that they
    computed; with GUARANTEED_NO_EVICT and STATIC_BATCH nobody is ever paused.
    """

    block_metrics: BlockMetrics | None = None

    def __init__(self, config: EngineConfig, profile: TrtllmSettings, keys: KeySpace | None = None) -> None:
        self.config = config
        self.keys = keys or KeySpace(*config.key_settings)
        self.profile = profile
        self.kv_cache = BlockManager(
            config.num_blocks - 1, config.block_size, profile, self.keys, logs_events=config.enable_kv_cache_events
        )
        self.kv_cache.reuses = config.enable_prefix_caching
        self.retention: Retention = _Clock(self.kv_cache)
        self.encoder: EncoderCache | NoEncoder = NoEncoder()
        self.statistics = EngineStatistics()
        self.observer = Observer()
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.live: dict[str, Request] = {}
        self.sequences: dict[Request, CachedSequence] = {}
        """What running requests hold."""
        self.in_context: set[Request] = set()
        """Running requests whose prompt is not computed to its end."""
        self.capacity: CapacityPolicy = POLICIES[profile.capacity_scheduler_policy]()
        self.chunker: Chunker = make_chunker(
            profile.context_chunking_policy, config.block_size, enabled=profile.enable_chunked_prefill
        )
        self._marks: dict[Request, TokenMarks] = {}
        self._arrivals: dict[Request, int] = {}
        self._num_arrived = 0
        self._finished_since_step: list[Request] = []
        self._ended: list[Request] = []

    def order(self, request: Request) -> tuple[int, int]:
        """The place of a request: the smaller priority first, then the earlier arrival."""
        return request.priority, self._arrivals[request]

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` all that happens to requests from now on."""
        self.observer = observer

    # ---------------------------------------------------------------- requests come and go

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait, or reject it at once if it can never run. ValueError: its id is in use."""
        if request.request_id in self.live:
            raise ValueError(f"request id {request.request_id!r}: a request with this id is still running")
        if reason := self._why_never(request):
            self.end(request, FinishReason.REJECTED, reason)
            return
        self.live[request.request_id] = request
        self._marks[request] = TokenMarks(self.keys, request.content)
        self._arrivals[request] = self._num_arrived
        self._num_arrived += 1
        insort(self.waiting, request, key=self.order)
        self.observer.arrived(request)

    def _why_never(self, request: Request) -> str | None:
        if request.lora is not None:
            return f"needs LoRA adapter {request.lora.name}: adapters of TensorRT-LLM are not modelled"
        if request.images:
            return "has images: those of TensorRT-LLM are not modelled"
        reserves = self.profile.capacity_scheduler_policy != "MAX_UTILIZATION"
        num_tokens = request.max_total_tokens if reserves else request.num_prompt_tokens
        needed, usable = self.kv_cache.num_blocks_for(num_tokens), self.kv_cache.num_usable_blocks
        if needed > usable:
            return f"needs {needed} blocks, pool {usable}"
        if not self.profile.enable_chunked_prefill and request.num_prompt_tokens > self.config.max_num_batched_tokens:
            return (
                f"a prompt of {request.num_prompt_tokens} tokens cannot be computed in one step of "
                f"{self.config.max_num_batched_tokens} (--max-num-tokens, --enable-chunked-prefill)"
            )
        return None

    def start_counting(self) -> None:
        """Begin all counts at 0: what came before was to warm up."""
        self.statistics.clear()
        self.kv_cache.num_evictions = self.kv_cache.num_saved_blocks = self.kv_cache.num_loaded_blocks = 0

    def has_requests(self) -> bool:
        """Whether there is anything to schedule, or finished requests to report."""
        return bool(self.live or self._finished_since_step)

    def take_ended(self) -> list[Request]:
        """Requests that ended since the last call, in order."""
        ended, self._ended = self._ended, []
        return ended

    def end(self, request: Request, reason: FinishReason, message: str = "") -> None:
        """Count a request as ended that holds nothing any more."""
        request.status, request.finish_reason, request.finish_message = RequestStatus.FINISHED, reason, message
        if reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            self.statistics.num_rejected += 1
        self._ended.append(request)
        self.observer.ended(request)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> Step:
        """Decide the next step; its tokens count as computed from now on."""
        step = Step(self.statistics.num_steps)
        self.statistics.num_steps += 1
        cache = self.kv_cache
        cache.refresh()
        defers = self.profile.enable_prefix_aware_scheduling
        demand = StepDemand(cache, self.sequences, self._marks, self.in_context, defers=defers)
        choice = self.capacity.choose(self.running, self.waiting, demand, self.config.max_num_seqs, self.order)
        for request in choice.paused:
            self._pause(request, step)
        self._add_tokens(step, choice.fitting)
        if choice.lacks_blocks:
            step.admission_stop = AdmissionStop.PREEMPTION if choice.paused else AdmissionStop.MEMORY
        elif self.waiting:
            full = len(choice.fitting) >= self.config.max_num_seqs
            step.admission_stop = AdmissionStop.SEATS if full else AdmissionStop.BUDGET
        if not step.requests and not step.preempted and not self.running and self.waiting:
            self._give_up_head()
        step.finished, self._finished_since_step = self._finished_since_step, []
        step.copies, step.saves, step.loads = cache.take_copies()
        self._advance(step)
        self.statistics.record_admissions(step.admitted, asks_host=cache.num_host_blocks > 0)
        self.observer.scheduled(step)
        return step

    def _add_tokens(self, step: Step, fitting: Sequence[Request]) -> None:
        """Give out the step's tokens: to generations first, what is left to prompts."""
        budget = self.config.max_num_batched_tokens
        generations = [each for each in fitting if each in self.sequences and each not in self.in_context][:budget]
        contexts = [self._context(each) for each in fitting if each not in self.sequences or each in self.in_context]
        sizes = self.chunker.sizes(contexts, budget - len(generations))
        left = budget - len(generations)
        for context, size in zip(contexts, sizes, strict=True):
            if size:
                left -= self._add_context(step, context, size, left)
        for request in generations:
            decode = self.profile.retention.decode
            blocks = self.kv_cache.extend(self.sequences[request], request.num_tokens + request.num_drafts, decode)
            if blocks:
                ids = [block.block_id for block in blocks]
                request.block_tables[0] += ids
                step.new_blocks.append((request, [ids]))
            step.add(request, 1)

    def _context(self, request: Request) -> Context:
        """Where a prompt stands; what of it is in the host does not count before it is on the device."""
        if request in self.sequences:
            position = request.num_computed_tokens
        else:
            position = self.kv_cache.lookup(self._marks[request], request.num_tokens).num_device_tokens
        return Context(request, position, request.num_tokens - position)

    def _add_context(self, step: Step, context: Context, size: int, left: int) -> int:
        """Let a prompt compute ``size`` tokens, or what is left if it hits more; how many it computes."""
        request, position = context.request, context.position
        if request not in self.sequences:
            sequence = self.kv_cache.new_sequence(self._marks[request])
            size_tokens = self.config.block_size
            retentions = self.profile.retention.of_prompt(request.num_tokens, size_tokens)
            added = self.kv_cache.add_sequence(sequence, request.num_tokens, retentions)
            now = Context(request, added.num_hit_tokens, request.num_tokens - added.num_hit_tokens)
            wanted = now.num_left if size == context.num_left else size + position - now.position
            chunks = self.profile.enable_chunked_prefill
            size = cut_at_block(now, min(wanted, left), size_tokens) if chunks else now.num_left
            if not 0 < size <= left:  # what it would have hit was handed out to others in this step
                self.kv_cache.release(sequence)
                return 0
            self._start(step, request, sequence, added.num_hit_tokens, added.num_host_tokens)
        step.add(request, size)
        return size

    def _start(
        self, step: Step, request: Request, sequence: CachedSequence, num_hit_tokens: int, num_host_tokens: int
    ) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        self.sequences[request] = sequence
        self.in_context.add(request)
        self.waiting.remove(request)
        insort(self.running, request, key=self.order)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit_tokens
        request.block_tables = [[block.block_id for block in sequence.blocks]]
        if request.session is not None:
            self._extend_keys(request)
        tables = [list(request.block_tables[0])]
        step.admitted.append(Admission(request, num_hit_tokens, tables, resumed, num_external_tokens=num_host_tokens))

    def _extend_keys(self, request: Request) -> None:
        """Keys of full blocks, by which whoever watches sees what turns of a session share."""
        request.content.extend_keys(request.block_keys, request.num_tokens // self.keys.hash_block_size)

    def _pause(self, request: Request, step: Step) -> None:
        """Take its blocks from ``request``; what it generated is part of its prompt when it starts again."""
        self.observer.preempted(request, None)
        self._release(request, min(request.num_tokens, request.num_computed_tokens + 1))
        self.running.remove(request)
        insort(self.waiting, request, key=self.order)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.statistics.num_preemptions += 1
        step.preempted.append(request)

    def _release(self, request: Request, num_tokens: int) -> None:
        """Store what ``request`` computed of its first ``num_tokens`` tokens, and let go of its blocks."""
        sequence = self.sequences.pop(request)
        self.in_context.discard(request)
        self.observer.releases(request)
        self.kv_cache.store(sequence, num_tokens, partial=True)
        self.kv_cache.release(sequence)
        request.block_tables = []
        request.num_slots = 0

    def _give_up_head(self) -> None:
        """End the first request, which even the idle server cannot start."""
        request = self.waiting.pop(0)
        message = f"{request.num_tokens} tokens cannot be computed in one step of {self.config.max_num_batched_tokens}"
        self._forget(request, FinishReason.CAPACITY if request.num_output_tokens else FinishReason.REJECTED, message)

    def _advance(self, step: Step) -> None:
        """Count the step's tokens as computed."""
        for request, num_tokens in zip(step.requests, step.num_tokens, strict=True):
            start = request.num_computed_tokens
            end = request.num_computed_tokens = start + num_tokens
            request.num_tokens_in_flight += num_tokens
            samples = end >= request.num_tokens
            request.is_prefill_chunk = not samples
            request.num_slots = len(self.sequences[request].blocks) * self.config.block_size
            step.samples.append(samples)
            if start < request.num_highest_computed_tokens:
                self.statistics.num_recomputed_tokens += min(end, request.num_highest_computed_tokens) - start
            request.num_highest_computed_tokens = max(end, request.num_highest_computed_tokens)
        self.statistics.num_scheduled_tokens += step.total_tokens
        self.statistics.num_block_copies += len(step.copies)

    # ---------------------------------------------------------------- a step's output

    def update(self, step: Step, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> None:
        """Deliver the output tokens of a step's requests; end those that are done."""
        for request, num_tokens, token_ids in zip(step.requests, step.num_tokens, tokens, strict=True):
            request.num_tokens_in_flight -= num_tokens
            if not token_ids:
                continue
            if request in self.in_context:
                self.in_context.remove(request)
                self.kv_cache.store(self.sequences[request], request.num_tokens, partial=False)
            reason = self._append_tokens(request, token_ids)
            if reason:
                if request.session is not None:
                    self._extend_keys(request)
                self._release(request, request.num_tokens)
                self.running.remove(request)
                self._forget(request, reason)

    def _append_tokens(self, request: Request, token_ids: Sequence[int]) -> FinishReason | None:
        for token_id in token_ids:
            request.content.append((token_id,))
            request.num_tokens += 1
            if token_id == request.eos_token_id or token_id in request.stop_token_ids:
                return FinishReason.STOP
            if request.num_tokens >= min(self.config.max_model_len, request.max_total_tokens):
                return FinishReason.LENGTH
        return None

    def _forget(self, request: Request, reason: FinishReason, message: str = "") -> None:
        del self.live[request.request_id], self._marks[request], self._arrivals[request]
        self._finished_since_step.append(request)
        self.end(request, reason, message)
