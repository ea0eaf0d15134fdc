"""What response times tell, and what salts cost, to be read."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import percent_text
from kvtwin.experiments.display.tables import Part, table

_ATTACK = ("block", "background/s", "salts", "right (ms)", "wrong (ms)", "AUC", "accuracy (%)", "hits lost")
_WORKLOAD = ("tenants", "hit tokens", "hit rate (%)", "hits lost", "mean TTFT (ms)")


def text_parts(measured: dict[str, Any]) -> list[Part]:
    """Two tables and the verdicts."""
    attack = [
        (
            str(row["block_size"]),
            f"{row['background_requests_per_s']:g}",
            "per tenant" if row["salts"] else "none",
            f"{row['right_median_ttft_ms']:.2f}",
            f"{row['wrong_median_ttft_ms']:.2f}",
            f"{row['auc']:.3f}",
            percent_text(row["accuracy"]),
            f"{row['lost_hit_tokens']:,}",
        )
        for row in measured["attack"]
    ]
    workload = [
        (
            "no salts" if row["tenants"] is None else str(row["tenants"]),
            f"{row['hit_tokens']:,}",
            percent_text(row["hit_rate"]),
            f"{row['lost_hit_tokens']:,}",
            f"{row['mean_ttft_ms']:.2f}",
        )
        for row in measured["workload"]
    ]
    return [
        "Median TTFT of probes that guess another tenant's prefix right and wrong",
        "",
        table(_ATTACK, attack, left=()),
        "",
        "What a salt per tenant costs the workload",
        "",
        table(_WORKLOAD, workload, left=()),
        "",
        *(f"* {sentence}" for sentence in measured["verdicts"]),
    ]
