"""``kvtwin demo``: replay the bundled workload on a pool small enough to show what a full cache does."""

from __future__ import annotations

import argparse
import contextlib
import tempfile

from experiments import replay
from experiments.parser import CommandParser
from workloads.demo import DEMO_WORKLOAD
from workloads.native import write_workload

DEMO_OPTIONS = (
    "--model meta-llama/Llama-3.1-8B --gpu rtx-4090 --max-model-len 8192 --num-gpu-blocks-override 1800 "
    "--max-num-seqs 64"
)

EPILOGUE = f"""\
It is `kvtwin replay demo.jsonl {DEMO_OPTIONS}`
with a workload that comes with kvtwin.

example:
  kvtwin demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(args: argparse.Namespace) -> int:
    """Write the workload to a temporary file and replay it as a user would."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_workload("demo.jsonl", DEMO_WORKLOAD, description="the demo of kvtwin")
        print(f"$ kvtwin replay demo.jsonl {DEMO_OPTIONS}\n", flush=True)
        parser = CommandParser()
        replay.add_arguments(parser)
        return replay.run(parser.parse_args(["demo.jsonl", *DEMO_OPTIONS.split()]))
