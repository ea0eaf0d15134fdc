"""Write the table of routers into docs/routing.md, and its picture: ``make routing [TRACES=DIR]``.

Every router serves two public workloads with four replicas of 10,000 blocks, whatever comes out. What is simulated is
deterministic: the same figures come out anywhere.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import kvtwin as kv
from kvtwin.experiments.pictures.figure import drawn_in_style
from kvtwin.sim.cluster.router_names import ROUTER_NAMES
from tests.accuracy import REPOSITORY, replace_part

MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
WEKA, NUM_SESSIONS = "weka/kv-cache-tester-710.jsonl.xz", 100
OPTIONS = {"model": "Llama-3.1-8B", "gpu": "h200", "data_parallel_size": 4, "num_gpu_blocks_override": 10_000}


@dataclass(frozen=True)
class Workload:
    """What all routers serve."""

    name: str
    title: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    def served(self, kept: Path, workers: int | None) -> pd.DataFrame:
        """A row per router; the runs are kept in a folder of their own, and those that are there are not repeated."""
        folder = kept / self.name
        axes = {"router": ROUTER_NAMES}
        options = OPTIONS | self.options
        found = kv.sweep(self.path, axes, workers=workers, out=folder, resume=folder.exists(), **options)
        if found["error"].notna().any():
            raise SystemExit(f"{self.title}: {found['error'].dropna().iloc[0]}")
        return found


def workloads(traces: Path, kept: Path) -> list[Workload]:
    """The whole conversation of Mooncake; and the first of Weka's sessions, which are written into ``kept``."""
    sessions = kept / f"weka-{NUM_SESSIONS}.jsonl"
    if not sessions.exists():
        with lzma.open(traces / WEKA, "rt", encoding="utf-8") as file:
            sessions.write_text("".join(islice(file, NUM_SESSIONS)), encoding="utf-8")
    return [
        Workload("mooncake", "Mooncake conversation", traces / MOONCAKE),
        Workload(
            "weka", f"Weka, first {NUM_SESSIONS} sessions", sessions, {"session_rate": 0.02, "max_model_len": 131_072}
        ),
    ]


def table(found: pd.DataFrame) -> list[str]:
    """A row per router."""
    lines = [
        "| router | hit rate | most loaded / mean, requests | the same, tokens | cached elsewhere when sent "
        "| computed though cached elsewhere | preemptions | mean TTFT (s) | p99 TTFT (s) |",
        f"| --- {'| --: ' * 8}|",
    ]
    for row in found.itertuples():
        queries = row.prefix_cache_queries
        cells = [
            f"`{row.router}`",
            f"{row.prefix_cache_hit_rate:.1%}",
            f"{row.load_imbalance:.2f}",
            f"{row.token_imbalance_overall:.2f}",
            f"{row.overlap_regret_tokens / queries:.1%}",
            f"{row.misrouted_tokens / queries:.1%}",
            f"{row.num_preemptions:,}",
            f"{row.mean_ttft_ms / 1000:.2f}",
            f"{row.p99_ttft_ms / 1000:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *_same_for_all(found)]


def _same_for_all(found: pd.DataFrame) -> list[str]:
    """What no router changes."""
    (rejected,), (completed,) = set(found["rejected"]), set(found["completed"])
    bound = found["one_cache_hit_rate"].median()
    return [
        f"{completed:,} requests are served, {rejected:,} rejected. One cache of 40,000 blocks would hit {bound:.1%}."
    ]


@drawn_in_style
def picture(found: Mapping[str, pd.DataFrame], path: Path) -> None:
    """A line per router: how much it hits and how long the first token takes, of every workload."""
    figure = Figure(figsize=(1 + 5 * len(found), 4.6), layout="constrained")
    panels = figure.subplots(1, 2 * len(found), sharey=True)
    for (title, rows), (hits, waits) in zip(found.items(), panels.reshape(-1, 2), strict=True):
        hits.plot(100 * rows["prefix_cache_hit_rate"], rows["router"], "o", color="C0")
        bound = 100 * rows["one_cache_hit_rate"].median()
        hits.axvline(bound, color="0.5", linestyle="--")
        hits.annotate("one cache", (bound, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
        hits.set(xlabel="hit rate, tokens (%)", xlim=(0, 1.15 * bound))
        waits.plot(rows["p99_ttft_ms"] / 1000, rows["router"], "o", color="C1")
        waits.set(xlabel="p99 TTFT (s)", xscale="log")
        waits.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        waits.xaxis.set_major_formatter("{x:g}")
        waits.xaxis.set_minor_formatter(NullFormatter())
        hits.set_title(title, loc="left", fontsize=10, pad=18)
    panels[0].invert_yaxis()
    figure.suptitle("Routers before four replicas of 10,000 blocks, Llama-3.1-8B on H200")
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder, and go on with those that are there")
    parser.add_argument("--workers", type=int, help="processes (one per CPU)")
    parser.add_argument("--only", choices=("mooncake", "weka"), help="only the table of this workload")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        kept = options.keep or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        chosen = [each for each in workloads(options.folder, kept) if options.only in (None, each.name)]
        found = {each.title: each.served(kept, options.workers) for each in chosen}
    lines = [line for title, rows in found.items() for line in (f"### {title}", "", *table(rows), "")]
    picture(found, REPOSITORY / "docs" / "pictures" / "routers.png")
    replace_part(REPOSITORY / "docs" / "routing.md", "table of routers", lines[:-1])
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
