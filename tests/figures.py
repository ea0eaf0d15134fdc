"""Regenerate the first table of docs/accuracy.md from the public traces: ``make figures [TRACES=DIR]``.

Prints Markdown rows. Decisions (hits, preemptions, evictions) must come out the same anywhere; CPU seconds and peak
memory are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
AZURE = "azure/AzureLLMInferenceTrace_conv.csv.gz"

UNBOUND = (
    "--num-gpu-blocks-override {blocks} --max-num-batched-tokens 1000000000 --max-num-seqs 100000 --step-time zero"
)

RUNS = {
    "Mooncake, block 16, 40,000 blocks": (MOONCAKE, "--num-gpu-blocks-override 40000"),
    "Mooncake, block 16, 40,000 blocks, `--rate-scale 0.48`": (
        MOONCAKE,
        "--num-gpu-blocks-override 40000 --rate-scale 0.48",
    ),
    "Azure conversation, block 16, all of an H200": (AZURE, ""),
    "Mooncake, block 512, nothing binds, no step time": (
        MOONCAKE,
        "--block-size 512 " + UNBOUND.format(blocks=320_000),
    ),
    "Mooncake, block 16, nothing binds, no step time": (MOONCAKE, UNBOUND.format(blocks=9_500_000)),
    "Mooncake, block 512, blocks never bind, roofline, `--rate-scale 0.48`": (
        MOONCAKE,
        "--block-size 512 --num-gpu-blocks-override 320000 --rate-scale 0.48",
    ),
    "Mooncake, block 512, one at a time, 4,096 usable blocks": (
        MOONCAKE,
        "--block-size 512 --num-gpu-blocks-override 4097 --max-concurrency 1",
    ),
    "Mooncake, block 512, one at a time, 32,768 usable blocks": (
        MOONCAKE,
        "--block-size 512 --num-gpu-blocks-override 32769 --max-concurrency 1",
    ),
}


def replay(trace: Path, options: str) -> tuple[dict, float, float]:
    """Summary, CPU seconds and peak MB of one run."""
    command = [
        sys.executable,
        "-m",
        "kvtwin.experiments.command_line",
        "replay",
        str(trace),
        *options.split(),
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"kvtwin replay {trace} {options}: exit status {os.waitstatus_to_exitcode(status)}")
    return json.loads(output), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def trace_rows(folder: Path) -> None:
    """The table of whole public traces."""
    print("| run | hit tokens | of queried | preemptions | evicted blocks | steps | CPU s | peak MB |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for name, (trace, options) in RUNS.items():
        summary, cpu_s, peak_mb = replay(folder / trace, options)
        hits, rate = summary["prefix_cache_hits"], summary["prefix_cache_hit_rate"]
        cells = [
            name,
            "unknown" if hits is None else f"{hits:,}",
            "unknown" if rate is None else f"{rate:.4f}",
            f"{summary['num_preemptions']:,}",
            f"{summary['num_evictions']:,}",
            f"{summary['steps']:,}",
            f"{cpu_s:.0f}",
            f"{peak_mb:.0f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    trace_rows(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
