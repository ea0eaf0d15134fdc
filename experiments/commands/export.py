"""``kvtwin export``: a run in the format of another tool."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.exports import perfetto, prometheus, vllm_bench
from kvtwin.experiments.files.whole import whole_file
from kvtwin.experiments.runs.reader import Run, written_by_this_version

FORMATS = {"perfetto": perfetto.export, "prometheus": prometheus.export, "vllm-bench": vllm_bench.export}

EPILOGUE = """\
perfetto     trace event JSON for ui.perfetto.dev: a track per request, counters of the cache (needs replay --events)
prometheus   metrics under vLLM's names; inter-token latencies only with replay --events
vllm-bench   the result JSON of vllm bench serve --save-detailed; itls only with replay --events

KV events need no export: `kvtwin replay --kv-events --out RUN` writes RUN/kv_events.jsonl.

examples:
  kvtwin replay demo --num-gpu-blocks-override 1800 --max-model-len 8192 --events --out first-run
  kvtwin export first-run --to perfetto --out first-run.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    add = parser.add_argument
    add("folder", metavar="RUN", type=Path, help="folder of a replay (--out)")
    add("--to", required=True, choices=tuple(FORMATS), help="format")
    add("--out", required=True, type=Path, metavar="FILE", help="file to write; one that is there is replaced")


def run(args: argparse.Namespace) -> int:
    """Write the file, and print its name."""
    shown = Run(args.folder)
    try:
        with (
            whole_file(args.out) as partial,
            written_by_this_version(args.folder),
            open(partial, "w", encoding="utf-8") as file,
        ):
            FORMATS[args.to](shown, file)
    except OSError as error:
        raise UserError(f"--out {args.out}: {error.strerror or error}") from None
    print(args.out)
    return 0
