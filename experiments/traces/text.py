"""What a workload file holds, to be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.tables import Part, facts_table, table

_COUNTS = {
    "sessions": "num_sessions",
    "sub-agent sessions": "num_sub_agents",
    "later turns": "num_later_turns",
    "LoRA adapters": "num_loras",
    "cache salts": "num_cache_salts",
    "extra samples": "num_further_samples",
    "requests with priority": "num_with_priority",
    "requests with images": "num_with_images",
    "zero outputs": "num_zero_outputs",
    "prompts too long": "num_over_length",
}
"""Told of where there are any."""

_STATISTICS = {
    "input tokens": "input_tokens",
    "output tokens": "output_tokens",
    "turns per session": "turns_per_session",
    "pauses (s)": "pauses_s",
}
_COLUMNS = ("mean", "p50", "p90", "p99", "max")

_SHARES = {
    "full blocks hit": ("hit_blocks", "full_blocks"),
    "prompt tokens hit": ("hit_tokens", "queried_tokens"),
    "prompts with a hit": ("num_prompts_with_hit", "num_prompts"),
}


def text_parts(facts: dict[str, Any]) -> list[Part]:
    """``facts`` of `inspect_workload`."""
    parts: list[Part] = [
        f"{facts['path']}  ({facts['format']}); cache rules of vLLM {VLLM_VERSION}",
        "",
        facts_table(_facts(facts)),
        "",
        table(("", *_COLUMNS, "total"), _statistics(facts)),
    ]
    sharing = facts["sharing"]
    if sharing is not None:
        parts += ["", f"prefix sharing, infinite cache, blocks of {sharing['block_size']} tokens"]
        parts.append(
            facts_table((label, _share(sharing[part], sharing[whole])) for label, (part, whole) in _SHARES.items())
        )
        if sharing["top_prefixes"]:
            parts += ["", _top_prefixes(sharing)]
    parts += ["", *(f"note: {note}" for note in facts["notes"])] if facts["notes"] else []
    return parts


def _facts(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{facts['num_requests']:,}, {facts['num_unsorted']:,} out of order"
    if facts["sessions_have_starts"]:
        rate, cv = facts["requests_per_s"], facts["interarrival_cv"]
        yield "span", f"{facts['span_s']:,.1f} s" + (f", {rate:,.2f} requests/s" if rate is not None else "")
        yield "interarrival CV", "none: all arrive together" if cv is None else f"{cv:.2f}"
        yield (
            "distinct arrival times",
            f"{facts['num_distinct_arrivals']:,}, up to {facts['most_at_one_instant']:,} at one",
        )
    else:
        yield "starts of sessions", "none: kvtwin replay needs --session-rate, or another way to start them"
    known = facts["prompts_known_by"]
    yield (
        "prompts known by",
        f"tokens {known['tokens']:,}, hash ids {known['hash_ids'] + known['hash_ids_with_outputs']:,}, "
        f"length {known['length']:,}",
    )
    for label, key in _COUNTS.items():
        if facts[key]:
            yield label, f"{facts[key]:,}"


def _statistics(facts: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for label, key in _STATISTICS.items():
        if (of := facts[key]) is not None:
            digits = 1 if key == "pauses_s" else 0
            yield label, *(f"{of[name]:,.{digits}f}" for name in _COLUMNS), f"{of['total']:,.0f}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole if whole else 0.0:.2%})"


def _top_prefixes(sharing: dict[str, Any]) -> Part:
    """The prefixes that save most."""
    headings = ("prefix tokens", "from", "requests", "saved tokens", "of hits", "first hit by")
    rows = [
        (
            f"{prefix['prefix_tokens']:,}",
            f"{prefix['counted_from_token']:,}",
            f"{prefix['requests']:,}",
            f"{prefix['saved_tokens']:,}",
            f"{prefix['saved_tokens'] / sharing['hit_tokens']:.2%}",
            prefix["first_request_id"],
        )
        for prefix in sharing["top_prefixes"]
    ]
    return table(headings, rows, left=(5,))
