"""``kvtwin size``: how many KV cache blocks a model gets on a GPU, item by item."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.size import SizeOptions
from kvtwin.experiments.options.trace import FormatOptions

if TYPE_CHECKING:
    from kvtwin.experiments.setup.sizing import SizingResult

OPTIONS = SizeOptions

EPILOGUE = """\
examples:
  kvtwin size --model meta-llama/Llama-3.1-8B --gpu h100
  kvtwin size --model gpt-oss-20b --gpu rtx-4090 --max-model-len -1 --trace conversation_trace.jsonl.gz
  kvtwin size --model ./config.json --kv-cache-memory-bytes 10GiB --max-model-len 8192 --json

Exit code: 0; 2 if vLLM would not start, or for a mistake in the input.
"""


def run(options: SizeOptions) -> int:
    """Print the budget and the plan; exit code 2 where vLLM would not start. UserError: a bad option."""
    from kvtwin.engine.sizing.group_planning import SizingError
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.setup.sizing import plan_sizing, resolve_inputs
    from kvtwin.experiments.sizes.facts import size_facts
    from kvtwin.experiments.sizes.text import budget_parts, plan_parts

    inputs = resolve_inputs(options)
    lengths = _trace_lengths(options)
    error = None
    result = None
    try:
        result = plan_sizing(inputs)
    except SizingError as problem:
        error = problem
    if options.json:
        print(json.dumps(size_facts(inputs, result, error) | _concurrency(result, lengths), indent=2, allow_nan=False))
    else:
        show(*budget_parts(inputs), *(plan_parts(result) if result else ()))
        for name, tokens in lengths.items() if result else ():
            print(f"Maximum concurrency for the trace's {name} of {tokens:,} tokens per request: ", end="")
            print(f"{result.plan.concurrency_at(tokens):.2f}x")
    if error:
        print(f"kvtwin: error: {error}", file=sys.stderr)
    return 2 if error else 0


def _trace_lengths(options: SizeOptions) -> dict[str, int]:
    """Mean and 95th percentile of the tokens of a request, prompt and output, rounded up; nothing without a trace."""
    if options.trace is None:
        for field in fields_of(FormatOptions):
            if getattr(options, field.name) is not None:
                raise UserError(f"{field.flag}: needs --trace")
        return {}
    from kvtwin.experiments.setup.trace import open_trace
    from kvtwin.workloads.multiset import Multiset

    workload = open_trace(options.trace, options)
    tokens = Multiset(Counter(record.prompt_tokens + record.output_tokens for record in workload))
    return {"mean": math.ceil(tokens.mean()), "p95": math.ceil(tokens.percentile(95))}


def _concurrency(result: SizingResult | None, lengths: dict[str, int]) -> dict[str, Any]:
    data: dict[str, Any] = {f"{name}_request_tokens": tokens for name, tokens in lengths.items()}
    for name, tokens in lengths.items() if result else ():
        data[f"max_concurrency_at_{name}_length"] = result.plan.concurrency_at(tokens)
    return data
