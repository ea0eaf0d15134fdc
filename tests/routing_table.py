"""Write the table of routers into docs/routing.md, and its picture: ``make routing [TRACES=DIR]``.

Every router but one serves the same public workload with four replicas of 10,000 blocks, whatever comes out: aibrix's
index of blocks of four characters takes too long on prompts of 12,000 tokens. What is simulated is deterministic: the
same figures come out anywhere, in minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

import kvtwin as kv
from kvtwin.experiments.pictures.figure import drawn_in_style
from kvtwin.sim.cluster.router_names import ROUTER_NAMES
from tests.accuracy import REPOSITORY, replace_part

MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
NUM_REQUESTS = 2_000
ROUTERS = [name for name in ROUTER_NAMES if name != "aibrix"]
OPTIONS = {"model": "Llama-3.1-8B", "gpu": "h200", "data_parallel_size": 4, "num_gpu_blocks_override": 10_000}


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
            f"{row.rejected:,}",
            f"{row.mean_ttft_ms / 1000:.2f}",
            f"{row.p99_ttft_ms / 1000:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    (bound,) = set(found["one_cache_hit_rate"].round(6))
    lines += ["", f"One cache of 40,000 blocks would hit {bound:.1%}."]
    return lines


@drawn_in_style
def picture(title: str, rows: pd.DataFrame, path: Path) -> None:
    """Hit rate against p99 TTFT, a point per router."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots()
    for row in rows.itertuples():
        point = (100 * row.prefix_cache_hit_rate, row.p99_ttft_ms / 1000)
        axes.plot(*point, "o", color="C0")
        axes.annotate(row.router, point, xytext=(5, 4), textcoords="offset points", fontsize=8, rotation=30)
    bound = 100 * rows["one_cache_hit_rate"].iloc[0]
    axes.axvline(bound, color="0.5", linestyle="--", label="one cache of this size")
    axes.set(title=title, xlabel="hit rate, tokens (%)", ylabel="p99 TTFT (s)", yscale="log")
    axes.margins(x=0.12)
    axes.legend(loc="upper center")
    figure.suptitle("Routers before four replicas of 10,000 blocks, Llama-3.1-8B on H200")
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder, and go on with those that are there")
    parser.add_argument("--workers", type=int, help="processes (one per CPU)")
    options = parser.parse_args()
    axes = {"router": ROUTERS}
    title = f"Mooncake conversation, first {NUM_REQUESTS:,} requests"
    found = kv.sweep(
        options.folder / MOONCAKE,
        axes,
        workers=options.workers,
        out=options.keep,
        resume=bool(options.keep and options.keep.exists()),
        num_prompts=NUM_REQUESTS,
        **OPTIONS,
    )
    if found["error"].notna().any():
        raise SystemExit(f"{title}: {found['error'].dropna().iloc[0]}")
    lines = [f"### {title}", "", *table(found)]
    picture(title, found, REPOSITORY / "docs" / "pictures" / "routers.png")
    replace_part(REPOSITORY / "docs" / "routing.md", "table of routers", lines)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
