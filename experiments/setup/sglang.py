"""SGLang as a server of a replay: from its options to its cache and its engine."""

from __future__ import annotations

from dataclasses import replace

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.sglang.profile import SglangProfile
from kvtwin.engine.sglang.sizing import default_chunk_tokens, default_max_running_requests, default_memory_fraction
from kvtwin.engine.sizing.cache_plan import plan_cache
from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.engine.sizing.memory_budget import MemoryBudget
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sglang import SglangOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult, resolve_inputs
from kvtwin.experiments.setup.speculation import Drafting
from kvtwin.sim.gpu_spec import GpuSpec
from kvtwin.sim.host_link import HostLink

_NO_GPU_BYTES = 80 << 30


class SglangSetup:
    """SGLang's."""

    def inputs(self, options: SizingOptions, drafting: Drafting | None) -> SizingInputs:
        """What SGLang knows before it plans its cache."""
        assert isinstance(options, SglangOptions)
        if options.gpu is None:
            raise UserError("--gpu is needed: SGLang's cache is a share of its memory")
        profile, tokens = _profile(options, _NO_GPU_BYTES), options.max_total_tokens
        as_vllm = replace(
            options,
            block_size=options.page_size,
            max_model_len=options.context_length,
            max_num_batched_tokens=profile.max_prefill_tokens,
            max_num_seqs=1,
        )
        try:
            known = resolve_inputs(as_vllm, None)
        except UserError as error:
            raise UserError(str(error).replace("--max-model-len", "--context-length")) from None
        assert known.gpu is not None
        if [layer.kind for layers in known.rank_layers for layer in layers if layer.kind != "full_attention"]:
            raise UserError(f"{known.shape.name}: --server sglang models full attention alone")
        profile = _profile(options, known.gpu.memory_bytes)
        return replace(
            known,
            budgets=tuple(_budget(budget, options, profile, known.gpu) for budget in known.budgets),
            available_bytes=tuple(
                _budget(budget, options, profile, known.gpu).available_bytes for budget in known.budgets
            ),
            num_gpu_blocks_override=None if tokens is None else tokens // options.page_size + 1,
            max_num_batched_tokens=profile.chunked_prefill_size or profile.max_prefill_tokens,
            max_num_seqs=options.max_running_requests or 0,
            async_scheduling=not options.disable_overlap_schedule,
            notes=known.shape.notes,
            server=profile,
        )

    def plan(self, inputs: SizingInputs) -> SizingResult:
        """A page that nobody gets comes on top of what fits: padding writes there. SizingError: nothing fits."""
        plan = plan_cache(inputs.rank_layers, inputs.available_bytes, max_model_len=1, in_flight_tokens=0)
        num_pages = plan.num_blocks + 1
        if inputs.num_gpu_blocks_override is not None:
            num_pages = min(num_pages, inputs.num_gpu_blocks_override)
        plan = replace(plan, num_blocks=num_pages, max_model_len=inputs.max_model_len)
        num_tokens = (num_pages - 1) * inputs.block_size
        most = inputs.max_num_seqs or default_max_running_requests(num_tokens, inputs.max_model_len)
        num_seqs = max(1, min(most, num_tokens // 2))
        interval = None
        if inputs.num_gpu_blocks_override is None:
            pairs = list(zip(inputs.budgets, plan.block_bytes, strict=True))
            low, high = (min(b.available_interval[side] // size for b, size in pairs) + 1 for side in (0, 1))
            interval = (max(0, low), high) if low != high else None
        return SizingResult(replace(inputs, max_num_seqs=num_seqs), plan, interval)

    def explained(
        self, error: SizingError, inputs: SizingInputs, options: SizingOptions, drafting: Drafting | None
    ) -> str:
        """The weights leave nothing, or less than a page."""
        budget = min(inputs.budgets, key=lambda one: one.available_bytes)
        return (
            f"--mem-fraction-static {budget.utilization:g} of {budget.total_bytes / 2**30:.2f} GiB leaves no room for "
            f"a KV cache beside the weights"
        )

    def sizing(self, options: SizingOptions, drafting: Drafting | None) -> SizingResult:
        """The planned cache. UserError: SGLang would not start."""
        inputs = self.inputs(options, drafting)
        try:
            return self.plan(inputs)
        except SizingError as error:
            raise UserError(self.explained(error, inputs, options, drafting)) from None

    def engine_config(self, options: ReplayOptions, sizing: SizingResult, drafting: Drafting | None) -> EngineConfig:
        """Pages are blocks, and whoever runs at most are its sequences."""
        inputs, plan = sizing.inputs, sizing.plan
        for flag, given in (("--events", options.events), ("--kv-events", options.kv_events)):
            if given:
                raise UserError(f"{flag}: what becomes of single pages is not reported for --server sglang")
        try:
            return EngineConfig(
                num_blocks=plan.num_blocks,
                server=inputs.server,
                block_size=inputs.block_size,
                max_model_len=plan.max_model_len,
                max_num_seqs=inputs.max_num_seqs,
                max_num_batched_tokens=max(inputs.max_num_batched_tokens, inputs.max_num_seqs),
                async_scheduling=inputs.async_scheduling,
            )
        except ValueError as error:
            raise UserError(f"--server sglang: {error}") from None

    def host_link(self, options: ReplayOptions, sizing: SizingResult) -> HostLink | None:
        """Nothing is copied to the host."""
        return None


def _profile(options: SglangOptions, memory_bytes: int) -> SglangProfile:
    chunk = options.chunked_prefill_size
    if chunk is None:
        chunk = default_chunk_tokens(memory_bytes)
    try:
        return SglangProfile(
            chunked_prefill_size=chunk if chunk > 0 else None,
            max_prefill_tokens=options.max_prefill_tokens,
            schedule_policy=options.schedule_policy,
            schedule_conservativeness=options.schedule_conservativeness,
            radix_eviction_policy=options.radix_eviction_policy,
        )
    except ValueError as error:
        name, _, rest = str(error).partition(":")
        raise UserError(f"--{name.replace('_', '-')}:{rest}") from None


def _budget(vllm: MemoryBudget, options: SglangOptions, profile: SglangProfile, gpu: GpuSpec) -> MemoryBudget:
    """Weights come off the share that ``--mem-fraction-static`` names; what else is needed lies outside it."""
    assert isinstance(options, SizingOptions)
    share = options.mem_fraction_static or default_memory_fraction(
        gpu.memory_bytes,
        profile.chunked_prefill_size or profile.max_prefill_tokens,
        options.tensor_parallel_size,
        options.pipeline_parallel_size,
    )
    weights = tuple(item for item in vllm.items if item.name == "weights")
    return MemoryBudget(vllm.total_bytes, share, weights)
