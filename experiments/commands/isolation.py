"""``kvtwin isolation``: what response times tell one tenant of another's prompts, and what cache salts cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from kvtwin.experiments.commands.replay import Replayed, replay
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.isolation.distinguish import distinguish
from kvtwin.experiments.isolation.spec import IsolationSpec, read_isolation_spec
from kvtwin.experiments.isolation.workloads import PROBE, attack_records, tenant_records, workload_of
from kvtwin.experiments.options.trace import DEMO, open_trace
from kvtwin.experiments.runs.facts import PROGRESS_DELAY_S
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.experiments.sweeps.point import parse
from kvtwin.workloads.time_units import MILLISECOND_NS
from kvtwin.workloads.workload import Workload

BUNDLED = Path(__file__).parents[1] / "configs" / "isolation.yaml"

EPILOGUE = """\
A victim sends prompts with secrets. An attacker sends probes that repeat the secret or a wrong guess, and looks at
their time to first token: a prefix that is cached answers sooner. With a cache salt per tenant, none is shared.
docs/isolation.md says what the columns mean, experiments/configs/isolation.yaml what CONFIG.yaml may hold.

example:
  kvtwin isolation
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``isolation``."""
    parser.add_argument("config", metavar="CONFIG.yaml", nargs="?", type=Path, help="what to measure (else as bundled)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    measured = measure(read_isolation_spec(args.config or BUNDLED))
    print(json.dumps(measured, indent=2, allow_nan=False) if args.json else "\n".join(text_lines(measured)))
    return 0


def measure(spec: IsolationSpec) -> dict[str, Any]:
    """All figures: a row per setting of the attack, one per number of tenants, and verdicts."""
    trace = open_trace(parse([spec.trace, *spec.options]))  # first: it may not be there
    if not any(record.knows_prefix for record in trace):
        raise UserError(f"{spec.path}: workload: trace: {spec.trace} tells nothing of shared prefixes")
    num_replays = 4 * len(spec.attack.block_sizes) * len(spec.attack.background_requests_per_s) + len(spec.tenants) + 1
    with tqdm(
        total=num_replays, unit="replay", delay=PROGRESS_DELAY_S, leave=False, desc="isolation", file=sys.stderr
    ) as bar:
        attack = list(_attack_rows(spec, bar))
        workload = _workload_rows(spec, trace, bar)
    return {"attack": attack, "workload": workload, "verdicts": _verdicts(attack, workload)}


def _attack_rows(spec: IsolationSpec, bar: Any) -> Iterator[dict[str, Any]]:
    for block_size in spec.attack.block_sizes:
        for rate in spec.attack.background_requests_per_s:
            hits = {}
            for with_salts in (False, True):
                ttft_ns = {}
                for is_right in (True, False):
                    records = attack_records(spec.attack, rate, guesses_right=is_right, with_salts=with_salts)
                    replayed = _replay(spec, DEMO, workload_of(records), f"--block-size={block_size}")
                    ttft_ns[is_right] = _probe_ttft_ns(spec, replayed)
                    hits[with_salts, is_right] = replayed.summary["prefix_cache_hits"]
                    bar.update()
                found = distinguish(ttft_ns[True], ttft_ns[False])
                yield {
                    "block_size": block_size,
                    "background_requests_per_s": rate,
                    "salts": with_salts,
                    "right_median_ttft_ms": float(np.median(ttft_ns[True])) / MILLISECOND_NS,
                    "wrong_median_ttft_ms": float(np.median(ttft_ns[False])) / MILLISECOND_NS,
                    "auc": found.auc,
                    "accuracy": found.accuracy,
                    "distinguishable": found.is_significant,
                    "hit_tokens": hits[with_salts, False],
                    "lost_hit_tokens": hits[False, False] - hits[with_salts, False],
                }


def _workload_rows(spec: IsolationSpec, workload: Workload, bar: Any) -> list[dict[str, Any]]:
    """The trace without salts, then with one per tenant."""
    rows: list[dict[str, Any]] = []
    for num_tenants in (None, *spec.tenants):
        records = list(workload if num_tenants is None else tenant_records(workload, num_tenants))
        summary = _replay(spec, spec.trace, workload_of(records, workload)).summary
        bar.update()
        rows.append(
            {
                "tenants": num_tenants,
                "hit_tokens": summary["prefix_cache_hits"],
                "queried_tokens": summary["prefix_cache_queries"],
                "hit_rate": summary["prefix_cache_hit_rate"],
                "lost_hit_tokens": rows[0]["hit_tokens"] - summary["prefix_cache_hits"] if rows else 0,
                "mean_ttft_ms": summary["mean_ttft_ms"],
            }
        )
    return rows


def _replay(spec: IsolationSpec, trace: str, workload: Workload, *options: str) -> Replayed:
    try:
        return replay(parse([trace, *spec.options, *options]), lambda _args: workload)
    except UserError as error:
        raise UserError(f"{spec.path}: {error}") from None


def _probe_ttft_ns(spec: IsolationSpec, replayed: Replayed) -> NDArray[np.int64]:
    columns = replayed.recorder.requests
    is_probe = np.array([name.startswith(PROBE) for name in columns.request_id], dtype=bool)
    first, arrival = as_array(columns.first_token_ns)[is_probe], as_array(columns.arrival_ns)[is_probe]
    if len(first) != spec.attack.probes or (first < arrival).any():
        raise UserError(f"{spec.path}: options: with these, not every probe is served")
    return first - arrival


def _verdicts(attack: list[dict[str, Any]], workload: list[dict[str, Any]]) -> list[str]:
    sentences = []
    for with_salts, who in ((False, "without salts"), (True, "with a salt per tenant")):
        rows = [row for row in attack if row["salts"] is with_salts]
        told = [row for row in rows if row["distinguishable"]]
        best = max(row["accuracy"] for row in rows)
        if told:
            sentences.append(
                f"{who}: distinguishable in {len(told)} of {len(rows)} settings: one probe's TTFT tells a right from a "
                f"wrong guess {best:.1%} of the time at best (50% is guessing)"
            )
        else:
            sentences.append(f"{who}: not distinguishable: the best threshold is right {best:.1%} of the time")
    most = max(workload, key=lambda row: int(row["lost_hit_tokens"]))
    if most["lost_hit_tokens"] > 0:
        sentences.append(
            f"isolation costs {most['lost_hit_tokens']:,} of {workload[0]['hit_tokens']:,} hit tokens with "
            f"{most['tenants']} tenants: the hit rate falls from {workload[0]['hit_rate']:.1%} to "
            f"{most['hit_rate']:.1%}"
        )
    else:
        sentences.append("isolation costs no hits on this workload")
    return sentences


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
