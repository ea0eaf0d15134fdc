"""A memory budget and a planned cache, line by line."""

from __future__ import annotations

from kvtwin.engine.sizing.cache_plan import CachePlan, format_gib
from kvtwin.engine.sizing.memory_budget import MemoryBudget
from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult

SMALL_REQUEST_SHARE = 0.05
"""A request of one block's tokens that takes more of the pool than this is worth a warning."""


def budget_lines(inputs: SizingInputs) -> list[str]:
    """The model, the GPU and every item of the memory budget."""
    shape = inputs.shape
    lines = [
        f"kvtwin size (models vLLM {VLLM_VERSION})",
        f"model   {shape.name}: {shape.total_params:,} parameters, {shape.active_params:,} per token, "
        f"{shape.num_layers} layers, {shape.quantization or shape.dtype}",
    ]
    if inputs.gpu:
        kind = "as CUDA reports it" if inputs.gpu.memory_is_measured else "data sheet"
        lines.append(f"gpu     {inputs.gpu.name}: {format_gib(inputs.gpu.memory_bytes)} GiB ({kind})")
    lines.append(
        f"server  tensor parallel {inputs.tensor_parallel_size}, pipeline parallel "
        f"{inputs.pipeline_parallel_size}, max_num_batched_tokens {inputs.max_num_batched_tokens}, "
        f"max_num_seqs {inputs.max_num_seqs}, kv_cache_dtype {inputs.kv_cache_dtype}"
    )
    lines += [f"note    {note}" for note in inputs.notes]
    for rank, budget in enumerate(inputs.budgets):
        lines += ["", f"memory of pipeline rank {rank}" if len(inputs.budgets) > 1 else "memory per GPU"]
        lines += _budget_table(budget)
    if inputs.budgets or any(inputs.available_bytes):
        lines += ["", f"Available KV cache memory: {format_gib(min(inputs.available_bytes))} GiB"]
    if any(item.source == "estimate" for budget in inputs.budgets for item in budget.items):
        lines.append(
            "Estimates can be off by gigabytes: the block count in a start-up log of the server "
            "(--num-gpu-blocks-override) is the better input."
        )
    return lines


def _budget_table(budget: MemoryBudget) -> list[str]:
    requested = f"total {format_gib(budget.total_bytes)} GiB x {budget.utilization}"
    lines = [f"  {'requested':<19} {budget.requested_bytes / 2**30:9.2f} GiB  {'':<9} {requested}"]
    for item in budget.items:
        reason = item.reason
        if item.source == "estimate":
            reason = f"{item.low_bytes / 2**30:.2f} to {item.high_bytes / 2**30:.2f} GiB: {reason}"
        lines.append(f"  - {item.name:<17} {item.num_bytes / 2**30:9.2f} GiB  {item.source:<9} {reason}")
    return lines


def plan_lines(result: SizingResult) -> list[str]:
    """The groups, the blocks and vLLM's own lines."""
    plan, inputs = result.plan, result.inputs
    lines = [
        "",
        f"{'group':<6} {'kind':<23} {'window':>7} {'layers':>6} {'block':>6} {'page bytes':>11} "
        f"{'padding':>8} {'blocks per ' + str(plan.max_model_len) + ' tokens':>26}",
    ]
    for index, group in enumerate(plan.groups):
        window = group.window_tokens or "-"
        pages = sorted({layer.page_bytes for layer in group.layers})
        needed = plan.group_request_blocks(group, plan.max_model_len)
        lines.append(
            f"{index:<6} {group.kind:<23} {window:>7} {len(group.layers):>6} {group.block_size:>6} "
            f"{'/'.join(map(str, pages)):>11} {plan.padding_share(group):>8.2%} {needed:>26}"
        )
    per_token = inputs.shape.token_bytes(inputs.kv_cache_dtype, inputs.tensor_parallel_size)
    lines += [
        "",
        f"bytes per token     {per_token:,} per GPU, all layers of the model, before windows forget",
        f"bytes per block     {' / '.join(f'{size:,}' for size in plan.block_bytes)}",
    ]
    if inputs.num_gpu_blocks_override is not None and any(inputs.available_bytes):
        fitting = min(b // s for b, s in zip(inputs.available_bytes, plan.block_bytes, strict=True))
        override = inputs.num_gpu_blocks_override
        lines.append(f"Overriding num_gpu_blocks={fitting} with num_gpu_blocks_override={override}")
    interval = result.blocks_interval
    spread = f" (between {interval[0]:,} and {interval[1]:,} by the estimates)" if interval else ""
    lines.append(f"blocks              {plan.num_blocks:,}, one of them the null block{spread}")
    if len(plan.rank_blocks) > 1:
        counts = ", ".join(f"{count:,}" for count in plan.rank_blocks)
        lines.append(f"blocks by rank      {counts}: pipeline rank {plan.limiting_rank} limits")
    share = plan.smallest_request_share
    blocks = "1 block" if len(plan.groups) == 1 else f"{len(plan.groups)} blocks, one of each group"
    lines.append(f"smallest request    {blocks}: {share:.2%} of the pool")
    if plan.alignment_tokens != inputs.block_size:
        lines.append(f"hit alignment       {plan.alignment_tokens} tokens (LCM of the groups' block sizes)")
    if inputs.auto_fit_max_model_len:
        lines.append(f"max_model_len       {plan.max_model_len:,} tokens fit")
    lines.append(capacity_line(plan))
    if share > SMALL_REQUEST_SHARE:
        lines.append(
            f"warning: a request of a single token takes {share:.1%} of the pool, as one of a whole block does"
        )
    return lines


def capacity_line(plan: CachePlan) -> str:
    """vLLM's start-up line of the cache's size."""
    return (
        f"GPU KV cache size: {plan.capacity_tokens:,} tokens, Maximum concurrency for {plan.max_model_len:,} "
        f"tokens per request: {plan.concurrency_at(plan.max_model_len):.2f}x"
    )
