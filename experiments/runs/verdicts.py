"""Verdicts on a run in words: why nothing hit, what was not served, and when the load is too high."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.misses.text import why_low, why_no_hits
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.sim.recording import NEVER, Recorder
from kvtwin.workloads.load import Load
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_ADVICE = {"LoRA is not enabled": " (--enable-lora)"}
"""What helps against a reason to reject."""

OVERLOAD_SHARE = 0.05
"""Share of all requests that must be at the server, when the last one arrives, to call it overload."""

OVERLOAD_GROWTH = 1.5
"""How many times as many as when half of the time had passed."""

BUSY_SHARE = 0.9
"""Share of the time that the device must be busy to say that sessions wait for it."""

WAITING_SHARE = 0.5
"""Share of the time until their answers that turns must wait to be started, to say that the server slows them down."""


def verdicts(
    summary: dict[str, Any], recorder: Recorder, config: EngineConfig, load: Load, num_replicas: int = 1
) -> list[str]:
    """All verdicts on a run, one sentence each."""
    overload = sessions_verdict(recorder, load, num_replicas) or overload_verdict(recorder, load, num_replicas)
    found = [hits_verdict(summary, config, load), overload]
    if config.retention != "lru" and not summary["later_turns"]:
        found.append(f"retention {config.retention} changed nothing: no request continues a session")
    if config.parallel_sampling == "fork" and not summary["num_forks"]:
        found.append("parallel sampling fork changed nothing: no sample was forked")
    if recorder.unfinished:
        found.append(
            f"no progress: {summary['unfinished']} requests are left and none can be scheduled, first "
            f"{recorder.unfinished[0]}; vLLM would hang here (without --vllm-strict such requests are rejected)"
        )
    found += [
        f"rejected, {reason}{_ADVICE.get(reason, '')}: first {where}"
        for reason, where in recorder.first_refused.items()
    ]
    return [verdict for verdict in found if verdict]


def hits_verdict(summary: dict[str, Any], config: EngineConfig, load: Iterable[RequestRecord]) -> str | None:
    """Why the hit rate is 0, low or unknown; None if there is nothing to explain. May read the workload again."""
    if not summary["completed"]:
        return None
    if summary["prefix_cache_hits"] is None:
        return "hit rate unknown: the trace gives only lengths, not which prompts share prefixes"
    if summary["prefix_cache_hits"] == 0:
        if not config.enable_prefix_caching:
            return "hit rate 0: prefix caching is off"
        reason = why_no_hits(summary) or _why_nothing_is_shared(config.alignment_tokens, load)
        return f"hit rate 0: {reason}"
    unknown = summary["num_requests_unknown_prefix"]
    if unknown:
        return f"the hit rate is a lower bound: prompts known by length only ({unknown:,}) count as misses"
    return why_low(summary)


def _why_nothing_is_shared(block_size: int, records: Iterable[RequestRecord]) -> str:
    """Looks up the first block of all prompts token by token, whatever their salt, LoRA and images."""
    cache, longest = InfiniteCache(), 0
    for record in records:
        if record.knows_prefix:
            longest = max(longest, cache.add(prefix_chain(_first_tokens(record, block_size), 1)))
    if longest:
        return (
            f"shared prefixes are shorter than one block: the longest has {longest} tokens, a block {block_size} "
            "(and a prompt's last token is always computed)"
        )
    return "no two prompts share a prefix"


def _first_tokens(record: RequestRecord, number: int) -> RequestRecord:
    """The record with its prompt cut off after ``number`` tokens, without output, salt, LoRA and images."""
    return replace(
        record,
        cache_salt=None,
        lora_name=None,
        images=(),
        prompt_tokens=min(record.prompt_tokens, number),
        token_ids=None if record.token_ids is None else record.token_ids[:number],
        output_token_ids=None,
    )


def overload_verdict(recorder: Recorder, load: Load, num_replicas: int = 1) -> str | None:
    """What to do when requests arrive faster than they can be served; None if they do not.

    Then the device is busy for longer than requests arrive, and the number of requests at the server keeps growing.
    """
    columns = recorder.requests
    started = as_array(columns.first_scheduled_ns) != NEVER  # the others were rejected
    if load.max_concurrency is not None or load.session_rate == math.inf or not started.any():
        return None
    arrival, finish = as_array(columns.arrival_ns)[started], as_array(columns.finish_ns)[started]
    first_ns, last_ns = int(arrival.min()), int(arrival.max())
    span_ns = last_ns - first_ns
    busy_ns = (sum(recorder.steps.end_ns) - sum(recorder.steps.start_ns)) // num_replicas
    half_way, at_last = (int(((arrival <= t) & (finish > t)).sum()) for t in (first_ns + span_ns // 2, last_ns))
    keeps_growing = at_last > max(10, OVERLOAD_SHARE * len(arrival)) and at_last > OVERLOAD_GROWTH * half_way
    if busy_ns <= span_ns or span_ns == 0 or not keeps_growing:
        return None
    waiting = int((as_array(columns.first_scheduled_ns)[started] > last_ns).sum())
    tokens = int((as_array(columns.prompt_tokens) + as_array(columns.output_tokens))[started].sum())
    flag, rate = "--rate-scale", load.rate_scale
    if load.request_rate is not None:
        flag, rate = "--request-rate", load.request_rate
    if load.session_rate is not None:
        flag, rate = "--session-rate", load.session_rate
    return (
        f"overload: the load is {tokens / span_ns * SECOND_NS:,.0f} tokens/s, the server sustains "
        f"{tokens / busy_ns * SECOND_NS:,.0f} tokens/s (prompt, cached or not, and output); when the last request "
        f"arrived, {at_last:,} were unfinished, {waiting:,} of them not started; {flag} "
        f"{_round_down(0.95 * rate * span_ns / busy_ns)} would about fit"
    )


def sessions_verdict(recorder: Recorder, load: Load, num_replicas: int = 1) -> str | None:
    """What to do when a server slows sessions down; None if it does not, or there are none.

    Turns wait for the answers before them, so requests never pile up as in `overload_verdict`: sessions take longer.
    """
    columns = recorder.requests
    is_turn = np.array([session is not None for session in columns.session], dtype=bool)
    is_turn &= as_array(columns.first_scheduled_ns) != NEVER
    if not is_turn.any():
        return None
    arrival, finish = as_array(columns.arrival_ns)[is_turn], as_array(columns.finish_ns)[is_turn]
    waited = as_array(columns.first_scheduled_ns)[is_turn] - arrival
    busy_ns = (sum(recorder.steps.end_ns) - sum(recorder.steps.start_ns)) // num_replicas
    waiting_share = waited.sum() / max(1, (finish - arrival).sum())
    if busy_ns < BUSY_SHARE * (finish.max() - arrival.min()) or waiting_share < WAITING_SHARE:
        return None
    starts: dict[str | None, int] = {}
    for session, arrival_ns in zip(columns.session, columns.arrival_ns, strict=True):
        if session is not None:
            starts[session] = min(arrival_ns, starts.get(session, arrival_ns))
    span_ns = max(starts.values()) - min(starts.values())
    advice = "fewer sessions at a time (--session-rate, --concurrent-sessions) would queue less"
    if load.session_rate is not None and span_ns and busy_ns > span_ns:
        advice = f"--session-rate {_round_down(0.95 * len(starts) / busy_ns * SECOND_NS)} would about fit"
    return (
        f"overload: the server slows its sessions down. It is busy nearly all the time, and turns queue for "
        f"{waited.mean() / SECOND_NS:,.1f} s on average, {waiting_share:.0%} of the time until their answers; {advice}"
    )


def _round_down(value: float) -> str:
    """Two significant digits, rounded down."""
    digits = max(0, 1 - int(np.floor(np.log10(value))))
    return f"{np.floor(value * 10**digits) / 10**digits:g}"
