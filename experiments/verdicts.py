"""What a user should be told in words: why nothing hit, and when the load is too high."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import EngineConfig
from experiments.trace_inspect import InfiniteCache
from sim.recording import NEVER, SECOND_NS, Recorder
from workloads import RequestRecord

OVERLOAD_SHARE = 0.05
"""Share of all requests that must still wait for their first step, when the last one arrives, to call it overload."""


def zero_hits_verdict(summary: dict[str, Any], config: EngineConfig, load: Iterable[RequestRecord]) -> str | None:
    """Why the hit rate is 0; None if it is not. Reads the workload again."""
    if summary["prefix_cache_hits"] is None:
        return "hit rate unknown: the trace tells lengths only, so nothing is known about shared prefixes"
    if summary["prefix_cache_hits"] or not summary["completed"]:
        return None
    if not config.enable_prefix_caching:
        return "hit rate 0: prefix caching is off"
    return "hit rate 0: " + _reason_for_no_hits(config.block_size, list(load))


def _reason_for_no_hits(block_size: int, records: list[RequestRecord]) -> str:
    plain = [replace(record, cache_salt=None, lora_name=None, images=()) for record in records]
    if _infinite_hits(block_size, records):
        return (
            "prompts share prefixes of at least one block, but the blocks were evicted, or not computed yet, "
            "when they were looked up"
        )
    if _infinite_hits(block_size, plain):
        return "prompts share prefixes, but their cache salt, LoRA adapter or images differ"
    longest = _longest_shared_prefix(plain)
    if longest:
        return (
            f"shared prefixes are shorter than one block: the longest has {longest} tokens, a block {block_size} "
            "(and a prompt's last token is always computed)"
        )
    return "no two prompts share a prefix"


def _infinite_hits(block_size: int, records: Iterable[RequestRecord]) -> int:
    """Blocks that an infinite cache would have hit, under the rule that the last token is computed."""
    cache = InfiniteCache(block_size)
    hits = 0
    for record in records:
        if record.knows_prefix:
            leading = cache.add(record)[1]
            hits += min(leading, (record.prompt_tokens - 1) // block_size)
    return hits


def _longest_shared_prefix(records: Iterable[RequestRecord]) -> int:
    cache = InfiniteCache(1)
    return max((cache.add(record)[1] for record in records if record.knows_prefix), default=0)


def overload_verdict(recorder: Recorder, *, rate_scale: float, closed_loop: bool) -> str | None:
    """What to do when requests arrive faster than they can be served; None if they do not."""
    columns = recorder.requests
    if closed_loop or not len(columns.arrival_ns):
        return None
    arrival = np.frombuffer(columns.arrival_ns, dtype=np.int64)
    first = np.frombuffer(columns.first_scheduled_ns, dtype=np.int64)
    last_arrival_ns, span_ns = int(arrival.max()), int(arrival.max() - arrival.min())
    waiting = int(((first == NEVER) | (first > last_arrival_ns)).sum())
    busy_ns = sum(recorder.steps.end_ns) - sum(recorder.steps.start_ns)
    if span_ns == 0 or waiting <= max(10, OVERLOAD_SHARE * len(arrival)) or busy_ns <= span_ns:
        return None
    tokens = sum(columns.prompt_tokens) + sum(columns.output_tokens)
    fitting = rate_scale * span_ns / busy_ns
    return (
        f"overload: {tokens / span_ns * SECOND_NS:,.0f} tokens/s are offered, {tokens / busy_ns * SECOND_NS:,.0f} "
        f"tokens/s can be sustained (prompt, cached or not, and output); when the last request arrived, {waiting:,} "
        f"had not been started; --rate-scale {_round_down(0.95 * fitting)} would about fit"
    )


def _round_down(value: float) -> str:
    """Two significant digits, rounded down."""
    digits = max(0, 1 - int(np.floor(np.log10(value))))
    return f"{np.floor(value * 10**digits) / 10**digits:g}"
