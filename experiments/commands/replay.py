"""``kvtwin replay``: simulate a server on a trace, and print latencies and what the cache did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvtwin.experiments.options.replay import ReplayCommandOptions

if TYPE_CHECKING:
    from kvtwin.experiments.runs.replayed import Replayed

OPTIONS = ReplayCommandOptions

EPILOGUE = """\
examples:
  kvtwin replay conversation_trace.jsonl.gz --model meta-llama/Llama-3.1-8B --gpu h200 --rate-scale 0.4
  kvtwin replay trace.csv --num-gpu-blocks-override 40000 --block-size 32 --out first-run
  kvtwin replay trace.jsonl --max-concurrency 8 --step-time zero --json
  kvtwin replay trace.jsonl --gpu h100 --step-time roofline --step-time aic --spread

Exit code: 0; 1 if no request completed, or the server hung; 2 for a mistake in the input.
"""


def run(options: ReplayCommandOptions) -> int:
    """Replay a trace. Exit code 1 if no request completed, or the server hung."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.runs.facts import now
    from kvtwin.experiments.runs.kept import replay_and_keep
    from kvtwin.experiments.runs.replica_text import replica_parts
    from kvtwin.experiments.runs.spread import spread_lines
    from kvtwin.experiments.runs.step_times import step_time_names
    from kvtwin.experiments.runs.text import bench_lines, cache_lines
    from kvtwin.experiments.setup.replicas import check_router

    check_router(options)

    if len(step_time_names(options)) > 1:
        return _show_each(options)

    def show_results(replayed: Replayed) -> None:
        summary = replayed.summary
        if options.json:
            print(json.dumps({"date": now()} | summary, indent=2, allow_nan=False))
        else:
            show(*replayed.heading, "", *bench_lines(summary, options), *cache_lines(summary), *replica_parts(summary))
            show(*spread_lines(summary), *(f"* {verdict}" for verdict in summary["verdicts"]))

    return _exit_code(replay_and_keep(options, show=show_results))


def _show_each(options: ReplayCommandOptions) -> int:
    """Replay with each of several step-time models, and print them side by side."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.runs.facts import now
    from kvtwin.experiments.runs.step_times import replay_with_each, step_time_parts

    replays = replay_with_each(options)
    if options.json:
        summaries = {name: replayed.summary for name, replayed in replays.items()}
        print(json.dumps({"date": now(), "step_times": summaries}, indent=2, allow_nan=False))
    else:
        show(*step_time_parts(replays))
    return max(map(_exit_code, replays.values()))


def _exit_code(replayed: Replayed) -> int:
    return 0 if replayed.summary["completed"] and not replayed.summary["unfinished"] else 1
