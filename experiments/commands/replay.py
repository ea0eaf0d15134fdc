"""``kvtwin replay``: simulate a server on a trace, and print latencies and what the cache did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvtwin.experiments.options.replay import ReplayOptions

if TYPE_CHECKING:
    from kvtwin.experiments.runs.replayed import Replayed

OPTIONS = ReplayOptions

EPILOGUE = """\
examples:
  kvtwin replay conversation_trace.jsonl.gz --model meta-llama/Llama-3.1-8B --gpu h200 --rate-scale 0.4
  kvtwin replay trace.csv --num-gpu-blocks-override 40000 --block-size 32 --out first-run
  kvtwin replay trace.jsonl --max-concurrency 8 --step-time zero --json

Exit code: 0; 1 if no request completed, or the server hung; 2 for a mistake in the input.
"""


def run(options: ReplayOptions) -> int:
    """Replay a trace. Exit code 1 if no request completed, or the server hung."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.runs.facts import now
    from kvtwin.experiments.runs.kept import replay_and_keep
    from kvtwin.experiments.runs.replica_text import replica_parts
    from kvtwin.experiments.runs.spread import spread_lines
    from kvtwin.experiments.runs.text import bench_lines, cache_lines
    from kvtwin.experiments.setup.replicas import check_router

    check_router(options)

    def show_results(replayed: Replayed) -> None:
        summary = replayed.summary
        if options.json:
            print(json.dumps({"date": now()} | summary, indent=2, allow_nan=False))
        else:
            show(*replayed.heading, "", *bench_lines(summary, options), *cache_lines(summary), *replica_parts(summary))
            show(*spread_lines(summary), *(f"* {verdict}" for verdict in summary["verdicts"]))

    summary = replay_and_keep(options, show=show_results).summary
    return 0 if summary["completed"] and not summary["unfinished"] else 1
