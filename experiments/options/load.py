"""The options that shape the load, with the names of ``vllm bench serve``."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Number, Switch, Whole
from kvtwin.workloads.request_record import MOST_SAMPLES

RATE = Number("RPS", 1e-9, 1e9, infinite=True)
BURSTINESS = Number("B", 1e-3, 1e6)
"""Within these limits gamma distributed gaps neither vanish nor overflow."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Load (as in vllm bench serve)."""

    num_prompts: int | None = option(None, Whole(), "use only the first N requests")
    warmup_requests: int = option(0, Whole("N", 0), "serve the first N requests but leave them out of all figures")
    rate_scale: float = option(
        1.0, Number("X", 1e-9, 1e9), "multiply the trace's request rate by X (0.5: half the rate)"
    )
    request_rate: float | None = option(
        None, RATE, "draw new arrival times at this rate, requests per second; inf: all at once"
    )
    burstiness: float = option(
        1.0, BURSTINESS, "with --request-rate or --session-rate. 1: Poisson arrivals; below 1: burstier"
    )
    max_concurrency: int | None = option(
        None,
        Whole(),
        "at most N requests at a time; arrival times are ignored unless --request-rate or --rate-scale is given",
    )
    ignore_eos: bool = option(
        True,
        Switch(),
        "outputs end by length; with --no-ignore-eos, by an EOS token, which async scheduling sees one step late",
    )
    parallel_samples: int | None = option(
        None,
        Whole("N", 1, MOST_SAMPLES),
        "ask for N samples of every prompt (n in the API) instead of the trace's number",
    )
    seed: int = option(0, Whole("N", 0), "seed for arrival times, sessions and accepted drafts")
    strict: bool = option(
        False,
        Switch(has_off=False),
        "stop with an error at the first request that cannot be served",
    )
