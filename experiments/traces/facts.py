"""What a workload file holds: counts, lengths, arrivals, and what an infinite prefix cache could hit of it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.progress import followed
from kvtwin.experiments.traces.session_facts import SessionFacts, summary_of
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache
from kvtwin.workloads.prefixes.shared_prefixes import SharedPrefixes
from kvtwin.workloads.request_record import RequestRecord
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
    cache, shared = InfiniteCache(), SharedPrefixes()
    inputs, outputs, known_by = Counter[int](), Counter[int](), Counter[str]()
    full_blocks = hit_blocks = queried_tokens = hit_tokens = prompts_with_hit = 0
    sessions, loras, salts = SessionFacts(), set[str](), set[str]()
    with_priority = with_images = further_samples = 0
    gaps, instants = _Gaps(), _Instants()
    for record in followed(workload, "reading", "requests"):
        inputs[record.prompt_tokens] += 1
        outputs[record.output_tokens] += 1
        gaps.add(record.arrival_ns)
        instants.add(record.arrival_ns)
        sessions.add(record)
        if record.lora_name is not None:
            loras.add(record.lora_name)
        if record.cache_salt:
            salts.add(record.cache_salt)
        with_priority += record.priority != 0
        with_images += bool(record.images)
        known_by[_known_by(record)] += 1
        most_hits = (record.prompt_tokens - 1) // block_size
        if record.knows_prefix:
            chain = prefix_chain(record, block_size)
            hits = cache.add(chain)
            usable = min(hits, most_hits)
            if num_top_prefixes:
                shared.add(chain.runs, usable, record.request_id)
                for _ in range(record.n - 1):
                    shared.add(chain.runs, most_hits, record.request_id)
            full_blocks += chain.num_prompt_blocks
            hit_blocks += hits
            queried_tokens += record.prompt_tokens
            hit_tokens += usable * block_size
            prompts_with_hit += usable > 0
        if again := record.n - 1:  # they find what the first sample computed
            further_samples += again
            full_blocks += again * (record.prompt_tokens // block_size)
            hit_blocks += again * (record.prompt_tokens // block_size)
            queried_tokens += again * record.prompt_tokens
            hit_tokens += again * most_hits * block_size
            prompts_with_hit += again * (most_hits > 0)
    span_s = (workload.last_arrival_ns - workload.first_arrival_ns) / SECOND_NS
    num_known = known_by.total() - known_by["length"] + further_samples
    return {
        "vllm_version": VLLM_VERSION,
        "path": str(workload.path),
        "format": workload.format_name,
        "num_requests": len(workload),
        "num_unsorted": workload.num_unsorted,
        "span_s": span_s,
        "requests_per_s": len(workload) / span_s if span_s else None,
        "interarrival_cv": gaps.coefficient_of_variation(),
        "num_distinct_arrivals": instants.number,
        "most_at_one_instant": instants.most,
        "input_tokens": summary_of(inputs),
        "output_tokens": summary_of(outputs),
        "num_zero_outputs": outputs[0],
        "prompts_known_by": {name: known_by[name] for name in _KNOWN_BY},
        "num_over_length": None if max_model_len is None else _num_over(inputs, max_model_len),
        **sessions.facts(),
        "sessions_have_starts": workload.has_starts,
        "num_loras": len(loras),
        "num_cache_salts": len(salts),
        "num_further_samples": further_samples,
        "num_with_priority": with_priority,
        "num_with_images": with_images,
        "sharing": {
            "block_size": block_size,
            "full_blocks": full_blocks,
            "hit_blocks": hit_blocks,
            "hit_block_share": hit_blocks / full_blocks if full_blocks else 0.0,
            "queried_tokens": queried_tokens,
            "hit_tokens": hit_tokens,
            "hit_token_share": hit_tokens / queried_tokens,
            "num_prompts": num_known,
            "num_prompts_with_hit": prompts_with_hit,
            "top_prefixes": shared.top(num_top_prefixes, block_size),
        }
        if num_known
        else None,
        "notes": [*workload.warnings, *_lacks(known_by, outputs[0])],
    }


def _num_over(lengths: Counter[int], max_model_len: int) -> int:
    """How many prompts vLLM's front end refuses because no token of output would fit (specification, section 14.1)."""
    return sum(count for length, count in lengths.items() if length >= max_model_len)


class _Gaps:
    """Gaps between arrivals, summed in integers."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._number = self._sum = self._sum_of_squares = 0

    def add(self, arrival_ns: int) -> None:
        if self._last_ns is not None:
            gap = arrival_ns - self._last_ns
            self._number += 1
            self._sum += gap
            self._sum_of_squares += gap * gap
        self._last_ns = arrival_ns

    def coefficient_of_variation(self) -> float | None:
        """Deviation over mean; None when all requests arrive together."""
        if not self._sum:
            return None
        return math.sqrt(self._number * self._sum_of_squares - self._sum**2) / self._sum


class _Instants:
    """How many arrival times there are, and how many requests share the busiest."""

    def __init__(self) -> None:
        self.number = self.most = self._here = 0
        self._last_ns: int | None = None

    def add(self, arrival_ns: int) -> None:
        if arrival_ns != self._last_ns:
            self.number += 1
            self._here = 0
            self._last_ns = arrival_ns
        self._here += 1
        self.most = max(self.most, self._here)


def _known_by(record: RequestRecord) -> str:
    if record.token_ids is not None:
        return "tokens"
    if record.hash_ids is None:
        return "length"
    return "hash_ids" if record.num_named_tokens <= record.prompt_tokens else "hash_ids_with_outputs"


def _lacks(known_by: Counter[str], num_zero_outputs: int) -> list[str]:
    """What the file does not tell, in words."""
    notes = []
    if known_by["length"] == known_by.total():
        notes.append("no prefix information: the hit rate will be unknown")
    elif known_by["length"]:
        notes.append(f"{known_by['length']:,} prompts are known by length only: their hits will be unknown")
    if known_by["hash_ids"]:
        notes.append("hash ids cover prompts only: an earlier output is hit only where a later prompt repeats its ids")
    if num_zero_outputs:
        notes.append(f"{num_zero_outputs:,} requests have no output tokens and will be refused")
    return notes
