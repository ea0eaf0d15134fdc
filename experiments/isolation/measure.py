"""The replays of an attack and of a workload with salts, and what they tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.isolation.distinguish import distinguish
from kvtwin.experiments.isolation.spec import IsolationSpec
from kvtwin.experiments.isolation.workloads import PROBE, attack_records, tenant_records, workload_of
from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.trace import DEMO
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.workloads.time_units import MILLISECOND_NS
from kvtwin.workloads.workload import Workload

BUNDLED = Path(__file__).parents[1] / "configs" / "isolation.yaml"


def measure(spec: IsolationSpec) -> dict[str, Any]:
    """All figures: a row per setting of the attack, one per number of tenants, and verdicts."""
    trace = open_trace(spec.trace, _options(spec, spec.trace))  # first: it may not be there
    if not any(record.knows_prefix for record in trace):
        raise UserError(f"{spec.path}: workload: trace: {spec.trace} does not say which prompts share prefixes")
    num_replays = 4 * len(spec.attack.block_sizes) * len(spec.attack.background_requests_per_s) + len(spec.tenants) + 1
    with progress("isolation", "replays", num_replays) as bar:
        attack = list(_attack_rows(spec, bar))
        workload = _workload_rows(spec, trace, bar)
    return {
        "trace": spec.trace,
        "model": _options(spec, spec.trace).model,
        "attack": attack,
        "workload": workload,
        "verdicts": _verdicts(attack, workload),
    }


def _attack_rows(spec: IsolationSpec, bar: Any) -> Iterator[dict[str, Any]]:
    for block_size in spec.attack.block_sizes:
        for rate in spec.attack.background_requests_per_s:
            hits = {}
            for with_salts in (False, True):
                ttft_ns = {}
                for is_right in (True, False):
                    records = attack_records(spec.attack, rate, guesses_right=is_right, with_salts=with_salts)
                    replayed = _replay(spec, DEMO, workload_of(records), block_size=block_size)
                    ttft_ns[is_right] = _probe_ttft_ns(spec, replayed)
                    hits[with_salts, is_right] = replayed.summary["prefix_cache_hits"]
                    bar.update(1)
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
        bar.update(1)
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


def _replay(spec: IsolationSpec, trace: str, workload: Workload, **options: Any) -> Replayed:
    try:
        return replay(_options(spec, trace, **options), workload)
    except UserError as error:
        raise UserError(f"{spec.path}: {error}") from None


def _options(spec: IsolationSpec, trace: str, **options: Any) -> ReplayOptions:
    return read_options(ReplayOptions, spec.options | options | {"trace": trace}, "kvtwin replay")


def _probe_ttft_ns(spec: IsolationSpec, replayed: Replayed) -> NDArray[np.int64]:
    columns = replayed.recorder.requests
    is_probe = np.array([name.startswith(PROBE) for name in columns.request_id], dtype=bool)
    first, arrival = as_array(columns.first_token_ns)[is_probe], as_array(columns.arrival_ns)[is_probe]
    if len(first) != spec.attack.probes or (first < arrival).any():
        raise UserError(f"{spec.path}: options: not every probe was served")
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
