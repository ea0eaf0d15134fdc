"""The lines that say what was simulated."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.experiments.runs.server import Server
from kvtwin.experiments.setup.engine import allocator_lines
from kvtwin.experiments.setup.step_time import step_time_notes, step_time_title
from kvtwin.experiments.sizes.text import capacity_line
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.workload import Workload


def heading_lines(server: Server, workload: Workload, summary: dict[str, Any]) -> list[str]:
    """What was simulated."""
    inputs, plan = server.sizing.inputs, server.sizing.plan
    unsorted = f", {workload.num_unsorted:,} out of order (sorted)" if workload.num_unsorted else ""
    lines = [
        f"kvtwin replay (models {server.config.server.title})",
        f"trace   {server.options.trace} ({workload.format_name}): "
        f"{number_of(summary['num_prompts'], 'request')}{unsorted}",
        f"server  {inputs.shape.name} on {inputs.gpu.name if inputs.gpu else 'no GPU'}, "
        f"tensor parallel {inputs.tensor_parallel_size}, step time {step_time_title(server.step_time)}, "
        f"{'async' if inputs.async_scheduling else 'sync'} scheduling",
        *([f"note    {evidence}"] if (evidence := server.config.server.evidence) else []),
        *(f"note    {note}" for note in (*inputs.notes, *step_time_notes(server.step_time))),
        *([f"note    {server.speculation.describe()}"] if server.speculation else []),
        *_warm_up_lines(summary["num_warmup_requests"]),
        *_group_lines(plan),
        *allocator_lines(server.config),
        *([capacity_line(plan)] if server.config.allocator == "paged" else []),
    ]
    if summary["max_concurrency_at_mean_length"] is not None:
        lines.append(
            f"Maximum concurrency at the trace's lengths: {summary['max_concurrency_at_mean_length']:.2f}x at the mean "
            f"of {summary['mean_request_tokens']:,.0f} tokens, {summary['max_concurrency_at_p95_length']:.2f}x at "
            f"p95, {summary['p95_request_tokens']:,.0f} tokens"
        )
    return lines


def _warm_up_lines(num_requests: int) -> list[str]:
    """That the start of the run is not counted, if so."""
    if not num_requests:
        return []
    return [f"note    warm-up: the first {number_of(num_requests, 'request')}; in no figure but the number of requests"]


def _group_lines(plan: CachePlan) -> list[str]:
    """What kinds of cache groups there are, unless it is one group of full attention."""
    kinds = Counter((group.kind, group.window_tokens, group.block_size) for group in plan.groups)
    if list(kinds) == [("full_attention", None, plan.groups[0].block_size)]:
        return []
    texts = [
        f"{count} x {kind}{f' of {window:,} tokens' if window else ''} in blocks of {block_size}"
        for (kind, window, block_size), count in kinds.items()
    ]
    return [f"groups  {', '.join(texts)}"]
