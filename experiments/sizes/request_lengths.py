"""How many requests of a trace's own lengths fit into a planned cache at once."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.size import SizeOptions
from kvtwin.experiments.options.trace import FormatOptions
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.workloads.multiset import Multiset


def request_lengths(options: SizeOptions) -> dict[str, int]:
    """Mean and 95th percentile of a request's tokens, prompt and output, rounded up; nothing without a trace."""
    if options.trace is None:
        for field in fields_of(FormatOptions):
            if getattr(options, field.name) != field.default:
                raise UserError(f"{field.flag}: needs --trace")
        return {}
    workload = open_trace(options.trace, options)
    warn_of(workload)
    tokens = Multiset(Counter(record.prompt_tokens + record.output_tokens for record in workload))
    return {"mean": math.ceil(tokens.mean()), "p95": math.ceil(tokens.percentile(95))}


def concurrency_facts(result: SizingResult | None, lengths: dict[str, int]) -> dict[str, Any]:
    """The lengths, and how many requests of each fit, as plain data; only the lengths without a ``result``."""
    data: dict[str, Any] = {f"{name}_request_tokens": tokens for name, tokens in lengths.items()}
    for name, tokens in lengths.items() if result else ():
        data[f"max_concurrency_at_{name}_length"] = result.plan.concurrency_at(tokens)
    return data
