"""What a workload file holds: counts, lengths, arrivals, and what an infinite prefix cache could hit of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.progress import followed, progress
from kvtwin.experiments.traces.counted import Counted
from kvtwin.experiments.traces.session_facts import summary_of
from kvtwin.workloads.columns import NotPlainError
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_KNOWN_BY = ("tokens", "hash_ids", "hash_ids_with_outputs", "length")


def inspect_workload(
    workload: Workload, block_size: int = 16, max_model_len: int | None = None, num_top_prefixes: int = 0
) -> dict[str, Any]:
    """Everything that ``kvtwin trace inspect`` prints about ``workload``, as a dict for JSON. Reads it once more.

    ``sharing`` is None when no prompt is known by more than its length. Its ``hit_tokens`` follow vLLM's
    rule: the leading blocks that were seen, at most ``(prompt - 1) // block_size``, so that a token is left
    to compute; its ``top_prefixes`` are the ``num_top_prefixes`` that save most of them. ``num_over_length`` counts
    prompts that a server of ``max_model_len`` refuses; None if none is given.
    """
    if block_size < 1:
        raise ValueError(f"block size: expected at least 1 token, got {block_size}")
    parts = None if num_top_prefixes else workload.columns()
    counted = Counted(block_size, num_top_prefixes)
    try:
        with progress("reading", "requests", total=len(workload)) as bar:
            for columns in parts or ():
                counted.add_columns(columns)
                bar.update(len(columns))
    except NotPlainError:
        parts, counted = None, Counted(block_size, num_top_prefixes)
    if parts is None:
        for record in followed(workload, "reading", "requests"):
            counted.add(record)
    return _facts(workload, counted, max_model_len)


def _facts(workload: Workload, counted: Counted, max_model_len: int | None) -> dict[str, Any]:
    span_s = (workload.last_arrival_ns - workload.first_arrival_ns) / SECOND_NS
    num_known = counted.known_by.total() - counted.known_by["length"] + counted.further_samples
    return {
        "vllm_version": VLLM_VERSION,
        "path": str(workload.path),
        "format": workload.format_name,
        "num_requests": len(workload),
        "num_unsorted": workload.num_unsorted,
        "span_s": span_s,
        "requests_per_s": len(workload) / span_s if span_s else None,
        "interarrival_cv": counted.gaps.coefficient_of_variation(),
        "num_distinct_arrivals": counted.instants.number,
        "most_at_one_instant": counted.instants.most,
        "input_tokens": summary_of(counted.inputs),
        "output_tokens": summary_of(counted.outputs),
        "num_zero_outputs": counted.outputs[0],
        "prompts_known_by": {name: counted.known_by[name] for name in _KNOWN_BY},
        "num_over_length": None if max_model_len is None else _num_over(counted.inputs, max_model_len),
        **counted.sessions.facts(),
        "sessions_have_starts": workload.has_starts,
        "num_loras": len(counted.loras),
        "num_cache_salts": len(counted.salts),
        "num_further_samples": counted.further_samples,
        "num_with_priority": counted.with_priority,
        "num_with_images": counted.with_images,
        "sharing": {
            "block_size": counted.block_size,
            "full_blocks": counted.full_blocks,
            "hit_blocks": counted.hit_blocks,
            "hit_block_share": counted.hit_blocks / counted.full_blocks if counted.full_blocks else 0.0,
            "queried_tokens": counted.queried_tokens,
            "hit_tokens": counted.hit_tokens,
            "hit_token_share": counted.hit_tokens / counted.queried_tokens,
            "num_prompts": num_known,
            "num_prompts_with_hit": counted.prompts_with_hit,
            "top_prefixes": counted.shared.top(counted.num_top_prefixes, counted.block_size),
        }
        if num_known
        else None,
        "notes": [*workload.warnings, *_lacks(counted.known_by, counted.outputs[0])],
    }


def _num_over(lengths: Counter[int], max_model_len: int) -> int:
    """How many prompts vLLM's front end refuses because no token of output would fit (specification, section 14.1)."""
    return sum(count for length, count in lengths.items() if length >= max_model_len)


def _lacks(known_by: Counter[str], num_zero_outputs: int) -> list[str]:
    """What the file does not tell, in words."""
    notes = []
    if known_by["length"] == known_by.total():
        notes.append("no prefix information: the hit rate will be unknown")
    elif known_by["length"]:
        notes.append(f"{number_of(known_by['length'], 'prompt')} known by length only, with unknown hits")
    if known_by["hash_ids"]:
        notes.append("hash ids cover prompts only: an earlier output is hit only where a later prompt repeats its ids")
    if num_zero_outputs:
        notes.append(f"{number_of(num_zero_outputs, 'request')} without output tokens, which a replay refuses")
    return notes
