"""The limits of ``kvtwin limit``, to be read."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import is_share
from kvtwin.experiments.display.tables import Part, table
from kvtwin.workloads.counts import number_of

_HEADINGS = ("memory", "blocks", "criterion", "holds at", "requests/s", "tokens/s", "(value)", "fails at", "(value)")


def text_parts(facts: dict[str, Any]) -> list[Part]:
    """A row per server and criterion, and what to make of them."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    failed: dict[str, list[str]] = {}
    num_replays = 0
    for server in facts["servers"]:
        memory = "as given" if server["memory_fraction"] is None else f"{server['memory_fraction']:g}"
        if "error" in server:
            failed.setdefault(server["error"], []).append(memory)
            continue
        num_replays += len(server["replays"])
        start = (memory, f"{server['num_gpu_blocks']:,}")
        for limit in server["limits"]:
            rows.append(
                (
                    *start,
                    limit["criterion"],
                    _rate(limit["highest_held"], "nowhere"),
                    _value(limit["requests_per_s_at_held"]),
                    _value(limit["tokens_per_s_at_held"], "{:,.0f}"),
                    _figure(limit, "value_at_held"),
                    _rate(limit["lowest_failed"], f"> {facts['highest_rate']:g}"),
                    _figure(limit, "value_at_failed"),
                )
            )
            start = ("", "")
            notes += _notes(facts, memory, limit)
    return [
        f"kvtwin limit: {facts['trace']}, {number_of(facts['num_prompts'], 'request')}; "
        f"highest --{facts['rate_option']}",
        "",
        table(_HEADINGS, rows, left=(2,)),
        "",
        f"Bisection from {facts['lowest_rate']:g} to {facts['highest_rate']:g} in "
        f"{number_of(num_replays, 'replay')}, to within "
        f"{100 * facts['precision']:g}%: between the two rates of a row nothing was replayed.",
        "requests/s arrive, and tokens/s of prompts and outputs are served, where it holds.",
        *(f"* memory {', '.join(memories)}: {reason}" for reason, memories in failed.items()),
        *notes,
    ]


def _notes(facts: dict[str, Any], memory: str, limit: dict[str, Any]) -> list[str]:
    """What a row alone does not say."""
    where = f"* memory {memory}, {limit['criterion']}"
    notes = []
    if limit["lowest_failed"] is None:
        notes.append(f"{where}: holds up to {facts['highest_rate']:g}, the highest tried")
    if limit["highest_held"] is None:
        notes.append(f"{where}: fails even at {facts['lowest_rate']:g}, the lowest tried")
    if limit["contradictions"]:
        rates = ", ".join(f"{rate:g}" for rate in limit["contradictions"])
        notes.append(f"{where}: no single boundary: the opposite result at {rates}")
    return notes


def _rate(rate: float | None, absent: str) -> str:
    return absent if rate is None else f"{rate:.4g}"


def _figure(limit: dict[str, Any], which: str) -> str:
    """What the criterion looks at, where there is one; a column of several kinds has the unit in its cells."""
    value = limit.get(which)
    return f"{value:.2%}" if value is not None and is_share(limit["figure"]) else _value(value)


def _value(value: float | None, form: str = "{:,.4g}") -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else form.format(value)
