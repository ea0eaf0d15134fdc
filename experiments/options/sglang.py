"""The options of SGLang's cache and scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from kvtwin.engine.sglang.settings import SCHEDULE_POLICY_NAMES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Number, Switch, Text, Whole


@dataclass(frozen=True, kw_only=True)
class SglangOptions:
    """SGLang, with --server sglang (SGLang's flags and defaults)."""

    context_length: int | None = option(
        None, Whole("TOKENS"), "longest request, prompt and output (default: the model's maximum)"
    )
    page_size: int = option(1, Whole("TOKENS"), "tokens per page")
    mem_fraction_static: float | None = option(
        None,
        Number("SHARE", 0, 1, above=True),
        "share of the GPU's memory for weights and KV cache (default: what SGLang's formula leaves beside "
        "activations and graphs)",
    )
    max_total_tokens: int | None = option(None, Whole("TOKENS"), "most tokens in the KV cache, if fewer than fit")
    max_running_requests: int | None = option(
        None, Whole("N"), "most running requests (default: 2048 to 4096, by the cache's size; at most half its tokens)"
    )
    chunked_prefill_size: int | None = option(
        None,
        Whole("TOKENS", -1),
        "most prompt tokens per step (default: by the GPU's memory); -1: do not split",
    )
    max_prefill_tokens: int = option(16384, Whole("TOKENS"), "most prompt tokens of a prefill batch")
    schedule_policy: str = option(
        "fcfs", Text("POLICY"), f"order in which waiting requests are tried: {', '.join(SCHEDULE_POLICY_NAMES)}"
    )
    schedule_conservativeness: float = option(
        1.0, Number("FACTOR", 0, 100, above=True), "above 1: set more memory aside for what running requests may say"
    )
    radix_eviction_policy: str = option(
        "lru", Text("POLICY"), f"which leaf of the radix tree is evicted first: {', '.join(EVICTION_POLICIES)}"
    )
    disable_overlap_schedule: bool = option(
        False, Switch(has_off=False), "wait for each step's output before the next is scheduled"
    )


SGLANG_REFUSED = {
    flag: f"{reason} is not modelled for SGLang"
    for flag, reason in {
        "--disable-radix-cache": "a server without prefix caching",
        "--enable-mixed-chunk": "mixing decodes into prefill batches",
        "--enable-hierarchical-cache": "a cache in host memory",
        "--enable-hicache": "a cache in host memory",
        "--hicache-ratio": "a cache in host memory",
        "--hicache-size": "a cache in host memory",
        "--enable-priority-scheduling": "admission by priority",
        "--retraction-policy": "retraction by priority",
        "--prefill-decode-interval": "decode rounds between prefills",
        "--prefill-max-requests": "a limit of requests per prefill batch",
        "--radix-eviction-policy-config": "an eviction policy with settings of its own",
    }.items()
}
"""Flags of SGLang that change results."""
