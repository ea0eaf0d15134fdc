"""A memory budget and a planned cache, line by line."""

from __future__ import annotations

from kvtwin.engine.sizing.cache_plan import CachePlan, format_gib
from kvtwin.engine.sizing.group_planning import LayerGroup
from kvtwin.engine.sizing.memory_budget import MemoryBudget
from kvtwin.experiments.display.tables import Part, facts_table, table
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult
from kvtwin.workloads.counts import number_of

SMALL_REQUEST_SHARE = 0.05
"""A request of one block's tokens that takes more of the pool than this is worth a warning."""


def budget_parts(inputs: SizingInputs) -> list[Part]:
    """The model, the GPU and every item of the memory budget."""
    shape = inputs.shape
    facts: list[tuple[str, str]] = [
        (
            "model",
            f"{shape.name}: {shape.total_params:,} parameters, {shape.active_params:,} per token, "
            f"{number_of(shape.num_layers, 'layer')}, {shape.quantization or shape.dtype}",
        )
    ]
    if inputs.gpu:
        kind = "as CUDA reports it" if inputs.gpu.memory_is_measured else "data sheet"
        facts.append(("gpu", f"{inputs.gpu.name}: {format_gib(inputs.gpu.memory_bytes)} GiB ({kind})"))
    facts.append(
        (
            "server",
            f"tensor parallel {inputs.tensor_parallel_size}, pipeline parallel "
            f"{inputs.pipeline_parallel_size}, max_num_batched_tokens {inputs.max_num_batched_tokens}, "
            f"max_num_seqs {inputs.max_num_seqs}, kv_cache_dtype {inputs.kv_cache_dtype}",
        )
    )
    facts += [("note", note) for note in inputs.notes]
    parts: list[Part] = [
        f"kvtwin size (models {inputs.server.title})",
        *([inputs.server.evidence] if inputs.server.evidence else []),
        facts_table(facts),
    ]
    for rank, budget in enumerate(inputs.budgets):
        parts += ["", f"memory of pipeline rank {rank}" if len(inputs.budgets) > 1 else "memory per GPU"]
        parts.append(_budget_table(budget))
    if inputs.budgets or any(inputs.available_bytes):
        parts += ["", f"Available KV cache memory: {format_gib(min(inputs.available_bytes))} GiB"]
    if any(item.source == "estimate" for budget in inputs.budgets for item in budget.items):
        parts.append(
            "Estimates can be off by gigabytes: the block count in a start-up log of the server "
            "(--num-gpu-blocks-override) is the better input."
        )
    return parts


def _budget_table(budget: MemoryBudget) -> Part:
    requested = f"total {format_gib(budget.total_bytes)} GiB x {budget.utilization}"
    rows = [("  requested", f"{budget.requested_bytes / 2**30:.2f} GiB", "", requested)]
    for item in budget.items:
        reason = item.reason
        if item.source == "estimate":
            reason = f"{item.low_bytes / 2**30:.2f} to {item.high_bytes / 2**30:.2f} GiB: {reason}"
        rows.append((f"  - {item.name}", f"{item.num_bytes / 2**30:.2f} GiB", item.source, reason))
    return table(("", "", "", ""), rows, left=(0, 2, 3))


def plan_parts(result: SizingResult) -> list[Part]:
    """The groups, the blocks and vLLM's own lines."""
    plan, inputs = result.plan, result.inputs
    needed = f"blocks per {plan.max_model_len} tokens"
    groups = table(
        ("group", "kind", "window", "layers", "block", "page bytes", "padding", needed),
        [(str(index), *_group_cells(plan, group)) for index, group in enumerate(plan.groups)],
        left=(0, 1),
    )
    per_token = inputs.shape.token_bytes(inputs.kv_cache_dtype, inputs.tensor_parallel_size)
    facts = [
        ("bytes per token", f"{per_token:,} per GPU, all layers of the model, without windows"),
        ("bytes per block", " / ".join(f"{size:,}" for size in plan.block_bytes)),
    ]
    after: list[Part] = []
    if inputs.num_gpu_blocks_override is not None and any(inputs.available_bytes):
        fitting = min(b // s for b, s in zip(inputs.available_bytes, plan.block_bytes, strict=True))
        override = inputs.num_gpu_blocks_override
        after.append(f"Overriding num_gpu_blocks={fitting} with num_gpu_blocks_override={override}")
    interval, has_null_block = result.blocks_interval, inputs.server.has_null_block
    spread = f" (between {interval[0]:,} and {interval[1]:,} by the estimates)" if interval else ""
    count = f"{plan.num_blocks:,}, one of them the null block" if has_null_block else f"{plan.num_blocks - 1:,}"
    facts.append(("blocks", f"{count}{spread}"))
    if len(plan.rank_blocks) > 1:
        counts = ", ".join(f"{count:,}" for count in plan.rank_blocks)
        facts.append(("blocks by rank", f"{counts}: pipeline rank {plan.limiting_rank} limits"))
    share = plan.smallest_request_share
    blocks = number_of(len(plan.groups), "block") + (", one of each group" if len(plan.groups) > 1 else "")
    facts.append(("smallest request", f"{blocks}: {share:.2%} of the pool"))
    if plan.alignment_tokens != inputs.block_size:
        facts.append(("hit alignment", f"{plan.alignment_tokens} tokens (LCM of the groups' block sizes)"))
    if inputs.auto_fit_max_model_len:
        facts.append(("max_model_len", f"{plan.max_model_len:,} tokens fit"))
    after.append(capacity_line(plan))
    if share > SMALL_REQUEST_SHARE:
        after.append(f"warning: a request of one token takes {share:.1%} of the pool, as much as a whole block")
    return ["", groups, "", facts_table(facts), *after]


def _group_cells(plan: CachePlan, group: LayerGroup) -> tuple[str, ...]:
    return (
        group.kind,
        str(group.window_tokens or "-"),
        str(len(group.layers)),
        str(group.block_size),
        "/".join(map(str, sorted({layer.page_bytes for layer in group.layers}))),
        f"{plan.padding_share(group):.2%}",
        str(plan.group_request_blocks(group, plan.max_model_len)),
    )


def capacity_line(plan: CachePlan) -> str:
    """vLLM's start-up line of the cache's size."""
    return (
        f"GPU KV cache size: {plan.capacity_tokens:,} tokens, Maximum concurrency for {plan.max_model_len:,} "
        f"tokens per request: {plan.concurrency_at(plan.max_model_len):.2f}x"
    )
