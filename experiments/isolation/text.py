"""Tables of what was measured."""

from __future__ import annotations

from typing import Any


def text_lines(measured: dict[str, Any]) -> list[str]:
    """Two tables and the verdicts."""
    attack = [("block", "background/s", "salts", "right (ms)", "wrong (ms)", "AUC", "accuracy", "hits lost")]
    attack += [
        (
            str(row["block_size"]),
            f"{row['background_requests_per_s']:g}",
            "per tenant" if row["salts"] else "none",
            f"{row['right_median_ttft_ms']:.2f}",
            f"{row['wrong_median_ttft_ms']:.2f}",
            f"{row['auc']:.3f}",
            f"{row['accuracy']:.3f}",
            f"{row['lost_hit_tokens']:,}",
        )
        for row in measured["attack"]
    ]
    workload = [("tenants", "hit tokens", "hit rate", "hits lost", "mean TTFT (ms)")]
    workload += [
        (
            "no salts" if row["tenants"] is None else str(row["tenants"]),
            f"{row['hit_tokens']:,}",
            f"{row['hit_rate']:.2%}",
            f"{row['lost_hit_tokens']:,}",
            f"{row['mean_ttft_ms']:.2f}",
        )
        for row in measured["workload"]
    ]
    return [
        "Median TTFT of probes that guess another tenant's prefix right and wrong",
        "",
        *_aligned(attack),
        "",
        "What a salt per tenant costs the workload",
        "",
        *_aligned(workload),
        "",
        *(f"* {sentence}" for sentence in measured["verdicts"]),
    ]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
