"""A memory budget and a planned cache as plain data."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult


def size_facts(inputs: SizingInputs, result: SizingResult | None, error: SizingError | None) -> dict[str, Any]:
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
        "suggested_max_num_seqs": error.suggested_max_num_seqs if error else None,
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
