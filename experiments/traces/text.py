"""What is in a trace file, line by line."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION


def as_text(facts: dict[str, Any]) -> str:
    """``facts`` of `inspect_workload`, to be read."""
    lines = [f"{facts['path']}  ({facts['format']}); cache rules of vLLM {VLLM_VERSION}", ""]

    def row(label: str, value: str) -> None:
        lines.append(f"{label:<24}{value}")

    row("requests", f"{facts['num_requests']:,}, {facts['num_unsorted']:,} out of order")
    if facts["sessions_have_starts"]:
        rate, cv = facts["requests_per_s"], facts["interarrival_cv"]
        row("span", f"{facts['span_s']:,.1f} s" + (f", {rate:,.2f} requests/s" if rate is not None else ""))
        row("interarrival CV", "none: all arrive together" if cv is None else f"{cv:.2f}")
        row(
            "distinct arrival times",
            f"{facts['num_distinct_arrivals']:,}, up to {facts['most_at_one_instant']:,} at one",
        )
    else:
        row("starts of sessions", "none: kvtwin replay needs --session-rate, or another way to start them")
    known = facts["prompts_known_by"]
    row(
        "prompts known by",
        f"tokens {known['tokens']:,}, hash ids {known['hash_ids'] + known['hash_ids_with_outputs']:,}, "
        f"length {known['length']:,}",
    )
    for label, key in (
        ("sessions", "num_sessions"),
        ("of them sub-agents", "num_sub_agents"),
        ("later turns", "num_later_turns"),
        ("LoRA adapters", "num_loras"),
        ("cache salts", "num_cache_salts"),
        ("further samples", "num_further_samples"),
        ("requests with priority", "num_with_priority"),
        ("requests with images", "num_with_images"),
        ("zero outputs", "num_zero_outputs"),
        ("prompts too long", "num_over_length"),
    ):
        if facts[key]:
            row(label, f"{facts[key]:,}")
    lines += ["", f"{'':<24}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}{'total':>16}"]
    for label, key in (
        ("input tokens", "input_tokens"),
        ("output tokens", "output_tokens"),
        ("turns per session", "turns_per_session"),
        ("pauses (s)", "pauses_s"),
    ):
        if (of := facts[key]) is not None:
            digits = ".1f" if key == "pauses_s" else ".0f"
            cells = "".join(f"{of[name]:>9,{digits}}" for name in ("mean", "p50", "p90", "p99", "max"))
            lines.append(f"{label:<24}{cells}{of['total']:>16,.0f}")
    sharing = facts["sharing"]
    if sharing is not None:
        lines += ["", f"prefix sharing, infinite cache, blocks of {sharing['block_size']} tokens"]
        for label, part, whole in (
            ("full blocks hit", "hit_blocks", "full_blocks"),
            ("prompt tokens hit", "hit_tokens", "queried_tokens"),
            ("prompts with a hit", "num_prompts_with_hit", "num_prompts"),
        ):
            share = sharing[part] / sharing[whole] if sharing[whole] else 0.0
            row(label, f"{sharing[part]:,} of {sharing[whole]:,} ({share:.2%})")
        lines += _prefix_lines(sharing)
    lines += ["", *(f"note: {note}" for note in facts["notes"])] if facts["notes"] else []
    return "\n".join(lines)


def _prefix_lines(sharing: dict[str, Any]) -> list[str]:
    """A table of the prefixes that save most, if it was asked for."""
    prefixes = sharing["top_prefixes"]
    if not prefixes:
        return []
    lines = ["", f"{'prefix tokens':>13}{'from':>11}{'requests':>10}{'saved tokens':>16}{'of hits':>9}  first hit by"]
    for prefix in prefixes:
        lines.append(
            f"{prefix['prefix_tokens']:>13,}{prefix['counted_from_token']:>11,}{prefix['requests']:>10,}"
            f"{prefix['saved_tokens']:>16,}{prefix['saved_tokens'] / sharing['hit_tokens']:>9.2%}"
            f"  {prefix['first_request_id']}"
        )
    return lines
