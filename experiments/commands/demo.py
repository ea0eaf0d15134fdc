"""``kvtwin demo``: replay the bundled workload on a pool small enough to show what a full cache does."""

from __future__ import annotations

import argparse

from kvtwin.experiments.commands import replay
from kvtwin.experiments.options.parser import CommandParser
from kvtwin.experiments.options.trace import DEMO

DEMO_OPTIONS = (
    "--model meta-llama/Llama-3.1-8B --gpu rtx-4090 --max-model-len 8192 --num-gpu-blocks-override 1800 "
    "--max-num-seqs 64"
)

EPILOGUE = f"""\
It is `kvtwin replay {DEMO} {DEMO_OPTIONS}`.

example:
  kvtwin demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(args: argparse.Namespace) -> int:
    """Replay the bundled workload as a user would."""
    print(f"$ kvtwin replay {DEMO} {DEMO_OPTIONS}\n", flush=True)
    parser = CommandParser()
    replay.add_arguments(parser)
    return replay.run(parser.parse_args([DEMO, *DEMO_OPTIONS.split()]))
