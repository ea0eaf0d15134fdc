"""The sources of misses in words: rows of the cache section, and what a user should know about a low hit rate."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.misses.sources import POSSIBLE, SOURCES
from kvtwin.workloads.counts import number_of

LABELS = {
    "cold": "never seen before",
    "evicted": "evicted before reuse",
    "unfilled": "not computed yet",
    "sparse": "not kept by windows or states",
    "isolation": "different salt, LoRA or image",
    "alignment": "in a partial or last block",
    "uncached": "prefix caching is off",
    "unknown": "prompt known by length only",
}

_GREAT_LOSS = 0.05
"""Share of the prompt tokens that a source must take to be worth a sentence."""

_WORTH_COPIES = 0.01
"""Share of the prompt tokens that parts of blocks must hold to be worth a line."""

_NUM_PREFIX_ROWS = 3


def miss_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """Labels and values for the cache section: sources of misses, and the prefixes that saved most."""
    lost, total = _lost(summary), _prompt_tokens(summary)
    rows: list[tuple[str, object]] = []
    if lost and total:
        rows.append(("Missed tokens:", _with_share(sum(lost.values()), total)))
        rows += [(f"  {LABELS[name]}:", _with_share(lost[name], total)) for name in SOURCES if name in lost]
    parts = summary["partial_reuse_tokens"]
    if parts and parts > _WORTH_COPIES * total:
        copies = f"{summary['partial_reuse_copies']:,} block copies"
        rows.append(("Parts of blocks would hit besides:", f"{_with_share(parts, total)}, {copies}"))
    if summary["evicted_pause_p50_s"] is not None:
        needed, pause_s = summary["evicted_needed_blocks_p50"], summary["evicted_pause_p50_s"]
        rows.append(("Evicted tokens, median reuse gap (s):", f"{pause_s:.2f}"))
        if needed is not None:
            rows.append(("  blocks needed to keep half of them:", needed))
    for prefix in summary["top_shared_prefixes"][:_NUM_PREFIX_ROWS]:
        saved = f"{prefix['saved_tokens']} in {number_of(prefix['requests'], 'request')}"
        rows.append((f"Prefix of {prefix['prefix_tokens']} tokens, saved:", saved))
    return rows


def why_low(summary: dict[str, Any]) -> str | None:
    """The greatest avoidable loss, if it is large enough to mention."""
    lost, total = _lost(summary), _prompt_tokens(summary)
    avoidable = {name: lost.get(name, 0) for name in (*POSSIBLE, "isolation")}
    source = max(avoidable, key=lambda name: avoidable[name])
    if not total or avoidable[source] < _GREAT_LOSS * total:
        return None
    share = f"{avoidable[source] / total:.1%} of the prompt tokens"
    if source == "isolation":
        reason = f"{share} missed only because {_differences(summary)} differ"
    elif source == "evicted":
        needed = summary["evicted_needed_blocks_p50"]
        reason = (
            f"{share} were evicted before reuse, half of them reused within {summary['evicted_pause_p50_s']:,.1f} s"
        )
        if needed is not None:
            reason += (
                f"; {number_of(needed, 'block')} instead of {summary['num_gpu_blocks']:,} would keep about half of them"
            )
    else:
        reason = f"{share} were {_REASONS[source]}"
    achieved = summary["prefix_cache_hit_rate"]
    return f"hit rate {achieved:.1%}, {summary['possible_hit_rate']:.1%} possible: {reason}"


def why_no_hits(summary: dict[str, Any]) -> str | None:
    """Why nothing hit although prompts share blocks; None if they share none."""
    lost = _lost(summary)
    reasons = sorted((name for name in _REASONS if lost.get(name)), key=lambda name: -lost[name])
    if reasons:
        words = ", or ".join(_REASONS[name] for name in reasons)
        return f"prompts share prefixes of at least one block, but these blocks were {words}"
    if lost.get("isolation"):
        return f"prompts share prefixes, but their {_differences(summary)} differ"
    return None


_REASONS = {
    "evicted": "evicted before reuse",
    "sparse": "not kept by windows or states (--prefix-cache-retention-interval None keeps all)",
    "unfilled": "not computed yet at the lookup",
    "uncached": "sent to replicas whose prefix caching is off",
}


def _lost(summary: dict[str, Any]) -> dict[str, int]:
    """Sources of misses with their tokens, if any."""
    return {name: tokens for name in SOURCES if (tokens := summary[f"miss_{name}_tokens"])}


def _prompt_tokens(summary: dict[str, Any]) -> int:
    hits: int = summary["prefix_cache_hits"] or 0
    external: int = summary["external_prefix_cache_hits"] or 0
    return hits + external + sum(_lost(summary).values())


def _differences(summary: dict[str, Any]) -> str:
    return " or ".join(summary["isolated_by"])


def _with_share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.2%})"
