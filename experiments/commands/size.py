"""``kvtwin size``: how many KV cache blocks a model gets on a GPU, item by item."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from typing import Any

from kvtwin.engine.config import VLLM_VERSION
from kvtwin.engine.sizing.cache_plan import CachePlan, format_gib
from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.engine.sizing.memory_budget import MemoryBudget
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.engine import ENGINE_FLAGS
from kvtwin.experiments.options.refused import refuse_flags
from kvtwin.experiments.options.sizing import (
    SizingInputs,
    SizingResult,
    add_sizing_arguments,
    plan_sizing,
    resolve_inputs,
)
from kvtwin.experiments.options.trace import add_format_arguments, open_trace
from kvtwin.workloads.multiset import Multiset

SMALL_REQUEST_SHARE = 0.05
"""A request of one block's tokens that takes more of the pool than this is worth a warning."""

EPILOGUE = """\
examples:
  kvtwin size --model meta-llama/Llama-3.1-8B --gpu h100
  kvtwin size --model gpt-oss-20b --gpu rtx-4090 --max-model-len -1 --trace conversation_trace.jsonl.gz
  kvtwin size --model ./config.json --kv-cache-memory-bytes 10GiB --max-model-len 8192 --json

Exit code: 0; 2 where vLLM would not start, or for a mistake in the input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``size``."""
    add_sizing_arguments(parser)
    parser.add_argument("--trace", metavar="TRACE", help="workload file: tell how many requests of its lengths fit")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_format_arguments(parser)
    refuse_flags(parser, dict.fromkeys(ENGINE_FLAGS, "does not decide the size of the cache; `kvtwin replay` takes it"))


def run(args: argparse.Namespace) -> int:
    """Print the budget and the plan; exit code 2 where vLLM would not start. UserError: a bad option."""
    inputs = resolve_inputs(args)
    lengths = _trace_lengths(args)
    error = None
    result = None
    try:
        result = plan_sizing(inputs)
    except SizingError as problem:
        error = problem
    if args.json:
        print(json.dumps(as_dict(inputs, result, error) | _concurrency(result, lengths), indent=2, allow_nan=False))
    else:
        for line in budget_lines(inputs):
            print(line)
        for line in plan_lines(result) if result else ():
            print(line)
        for name, tokens in lengths.items() if result else ():
            print(f"Maximum concurrency for the trace's {name} of {tokens:,} tokens per request: ", end="")
            print(f"{result.plan.concurrency_at(tokens):.2f}x")
    if error:
        print(f"kvtwin: error: {error}", file=sys.stderr)
    return 2 if error else 0


def _trace_lengths(args: argparse.Namespace) -> dict[str, int]:
    """Mean and 95th percentile of the tokens of a request, prompt and output, rounded up; nothing without a trace."""
    if args.trace is None:
        for name, value in vars(args).items():
            if value is not None and (name == "format" or name.startswith("timed_trace_")):
                raise UserError(f"--{name.replace('_', '-')}: needs --trace")
        return {}
    tokens = Multiset(Counter(record.prompt_tokens + record.output_tokens for record in open_trace(args)))
    return {"mean": math.ceil(tokens.mean()), "p95": math.ceil(tokens.percentile(95))}


def _concurrency(result: SizingResult | None, lengths: dict[str, int]) -> dict[str, Any]:
    data: dict[str, Any] = {f"{name}_request_tokens": tokens for name, tokens in lengths.items()}
    for name, tokens in lengths.items() if result else ():
        data[f"max_concurrency_at_{name}_length"] = result.plan.concurrency_at(tokens)
    return data


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


def as_dict(inputs: SizingInputs, result: SizingResult | None, error: SizingError | None) -> dict[str, Any]:
    """Everything that is printed, as plain data: bytes, blocks and tokens are whole numbers."""
    data: dict[str, Any] = {
        "vllm_version": VLLM_VERSION,
        "model": inputs.shape.name,
        "total_params": inputs.shape.total_params,
        "active_params": inputs.shape.active_params,
        "gpu": inputs.gpu.name if inputs.gpu else None,
        "tensor_parallel_size": inputs.tensor_parallel_size,
        "pipeline_parallel_size": inputs.pipeline_parallel_size,
        "kv_cache_dtype": inputs.kv_cache_dtype,
        "max_num_batched_tokens": inputs.max_num_batched_tokens,
        "max_num_seqs": inputs.max_num_seqs,
        "available_bytes": list(inputs.available_bytes),
        "budgets": [
            {
                "total_bytes": budget.total_bytes,
                "requested_bytes": budget.requested_bytes,
                "items": [
                    {
                        "name": item.name,
                        "bytes": item.num_bytes,
                        "low_bytes": item.low_bytes,
                        "high_bytes": item.high_bytes,
                        "source": item.source,
                    }
                    for item in budget.items
                ],
            }
            for budget in inputs.budgets
        ],
        "notes": list(inputs.notes),
        "error": str(error) if error else None,
        "suggested_max_model_len": error.suggested_max_model_len if error else None,
    }
    if result is None:
        return data
    plan = result.plan
    groups = [
        {
            "kind": group.kind,
            "window_tokens": group.window_tokens,
            "layers": list(group.layer_indices),
            "block_size": group.block_size,
            "page_bytes": group.page_bytes,
            "padding_share": plan.padding_share(group),
            "request_blocks": plan.group_request_blocks(group, plan.max_model_len),
        }
        for group in plan.groups
    ]
    return data | {
        "groups": groups,
        "block_bytes": list(plan.block_bytes),
        "num_blocks": plan.num_blocks,
        "rank_blocks": list(plan.rank_blocks),
        "limiting_rank": plan.limiting_rank,
        "smallest_request_share": plan.smallest_request_share,
        "blocks_interval": result.blocks_interval,
        "max_model_len": plan.max_model_len,
        "capacity_tokens": plan.capacity_tokens,
        "max_concurrency": plan.concurrency_at(plan.max_model_len),
    }
