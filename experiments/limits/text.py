"""The limits of ``kvtwin limit``, to be read."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.tables import Part, table

_HEADINGS = ("memory", "blocks", "criterion", "holds at", "(value)", "fails at", "(value)")


def text_parts(facts: dict[str, Any]) -> list[Part]:
    """A row per server and criterion, and what to make of them."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    num_replays = 0
    for server in facts["servers"]:
        memory = "as given" if server["memory_fraction"] is None else f"{server['memory_fraction']:g}"
        if "error" in server:
            notes.append(f"* memory {memory}: {server['error']}")
            continue
        num_replays += len(server["replays"])
        start = (memory, f"{server['num_gpu_blocks']:,}")
        for limit in server["limits"]:
            rows.append(
                (
                    *start,
                    limit["criterion"],
                    _rate(limit["highest_held"], "nowhere"),
                    _value(limit.get("value_at_held")),
                    _rate(limit["lowest_failed"], "nowhere"),
                    _value(limit.get("value_at_failed")),
                )
            )
            start = ("", "")
            notes += _notes(facts, memory, limit)
    return [
        f"kvtwin limit: {facts['trace']}, {facts['num_prompts']:,} requests; highest --{facts['rate_option']}",
        "",
        table(_HEADINGS, rows, left=(2,)),
        "",
        f"Bisection from {facts['lowest_rate']:g} to {facts['highest_rate']:g} in {num_replays} replays, to within "
        f"{100 * facts['precision']:g} %: between the two rates of a row nothing was replayed.",
        *notes,
    ]


def _notes(facts: dict[str, Any], memory: str, limit: dict[str, Any]) -> list[str]:
    """What a row alone does not say."""
    where = f"* memory {memory}, {limit['criterion']}"
    notes = []
    if limit["lowest_failed"] is None:
        notes.append(f"{where}: holds up to {facts['highest_rate']:g}, the highest rate tried")
    if limit["highest_held"] is None:
        notes.append(f"{where}: fails even at {facts['lowest_rate']:g}, the lowest rate tried")
    if limit["contradictions"]:
        rates = ", ".join(f"{rate:g}" for rate in limit["contradictions"])
        notes.append(f"{where}: no single boundary: the opposite result at {rates}")
    return notes


def _rate(rate: float | None, absent: str) -> str:
    return absent if rate is None else f"{rate:.4g}"


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
