"""``kvtwin demo``: replay the bundled workload on a pool small enough to show what a full cache does."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from experiments import replay
from workloads import write_workload
from workloads.demo import DEMO_WORKLOAD

DEMO_OPTIONS = (
    "--model meta-llama/Llama-3.1-8B --gpu rtx-4090 --max-model-len 8192 --num-gpu-blocks-override 1800 "
    "--max-num-seqs 64"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run(args: argparse.Namespace) -> int:
    """Write the workload to a temporary file and replay it as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "demo.jsonl"
        write_workload(trace, DEMO_WORKLOAD, description="the demo of kvtwin")
        print(f"$ kvtwin replay demo.jsonl {DEMO_OPTIONS}\n", flush=True)
        parser = argparse.ArgumentParser()
        replay.add_arguments(parser)
        return replay.run(parser.parse_args([str(trace), *DEMO_OPTIONS.split()]))
