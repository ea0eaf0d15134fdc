"""Write the table of routers into docs/routing.md, and its picture: ``make routing [TRACES=DIR]``.

Every router serves the same public workloads with four replicas of 10,000 blocks, whatever comes out. What is simulated
is deterministic: the same figures come out anywhere, in minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import kvtwin as kv
from kvtwin.experiments.pictures.figure import drawn_in_style
from kvtwin.sim.cluster.router_names import ROUTER_NAMES
from kvtwin.workloads.formats.native import write_lines
from kvtwin.workloads.request_record import RequestRecord
from tests.accuracy import REPOSITORY, replace_part

MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
WEKA = "weka/kv-cache-tester-710.jsonl.xz"
NUM_SESSIONS, NUM_REQUESTS = 20, 2_000
OPTIONS = {"model": "Llama-3.1-8B", "gpu": "h200", "data_parallel_size": 4, "num_gpu_blocks_override": 10_000}


def first_sessions(path: Path, number: int) -> Iterator[RequestRecord]:
    """The requests of the first sessions of a trace."""
    known: set[str] = set()
    for record in kv.open_workload(path):
        session = str(record.session)
        if session not in known and len(known) == number:
            continue
        known.add(session)
        yield record


def table(found: pd.DataFrame) -> list[str]:
    """A row per router."""
    lines = [
        "| router | hit rate | most loaded / mean, requests | the same, tokens | cached elsewhere when sent "
        "| computed though cached elsewhere | preemptions | rejected | mean TTFT (s) | p99 TTFT (s) |",
        f"| --- {'| --: ' * 9}|",
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
            f"{row.num_rejected:,}",
            f"{row.mean_ttft_ms / 1000:.2f}",
            f"{row.p99_ttft_ms / 1000:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    (bound,) = set(found["one_cache_hit_rate"].round(6))
    lines += ["", f"One cache of 40,000 blocks would hit {bound:.1%}."]
    return lines


@drawn_in_style
def picture(found: dict[str, pd.DataFrame], path: Path) -> None:
    """Hit rate against p99 TTFT, a point per router."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        for place, row in enumerate(rows.sort_values("prefix_cache_hit_rate").itertuples()):
            axes.plot(100 * row.prefix_cache_hit_rate, row.p99_ttft_ms / 1000, "o", color="C0")
            above = place % 2 == 0
            axes.annotate(
                row.router,
                (100 * row.prefix_cache_hit_rate, row.p99_ttft_ms / 1000),
                xytext=(0, 7 if above else -13),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
        axes.axvline(
            100 * rows["one_cache_hit_rate"].iloc[0], color="0.5", linestyle="--", label="one cache of this size"
        )
        axes.set(title=title, xlabel="hit rate, tokens (%)", ylabel="p99 TTFT (s)", ylim=(0, None))
        axes.margins(x=0.12)
        axes.legend(loc="upper left")
    figure.suptitle("Routers before four replicas of 10,000 blocks, Llama-3.1-8B on H200")
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder, and go on with those that are there")
    parser.add_argument("--workers", type=int, help="processes (one per CPU)")
    options = parser.parse_args()
    axes = {"router": list(ROUTER_NAMES)}
    with tempfile.TemporaryDirectory() as scratch:
        weka = (options.keep or Path(scratch)) / "weka.jsonl"
        weka.parent.mkdir(parents=True, exist_ok=True)
        with weka.open("wb") as file:
            write_lines(file, first_sessions(options.folder / WEKA, NUM_SESSIONS), f"the first {NUM_SESSIONS} sessions")
        sweeps = {
            f"Mooncake conversation, first {NUM_REQUESTS:,} requests": (
                options.folder / MOONCAKE,
                {"num_prompts": NUM_REQUESTS},
            ),
            f"Weka, first {NUM_SESSIONS} sessions": (weka, {"max_model_len": 131_072}),
        }
        found = {}
        for title, (trace, more) in sweeps.items():
            out = options.keep / title.split()[0].rstrip(",") if options.keep else None
            resume = bool(out and out.exists())
            found[title] = kv.sweep(trace, axes, workers=options.workers, out=out, resume=resume, **OPTIONS, **more)
    lines = []
    for title, rows in found.items():
        if rows["error"].notna().any():
            raise SystemExit(f"{title}: {rows['error'].dropna().iloc[0]}")
        lines += [f"### {title}", "", *table(rows), ""]
    picture(found, REPOSITORY / "docs" / "pictures" / "routers.png")
    replace_part(REPOSITORY / "docs" / "routing.md", "table of routers", lines[:-1])
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
