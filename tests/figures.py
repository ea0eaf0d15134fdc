"""Regenerate the figures of docs/accuracy.md from the public traces: ``make figures [TRACES=DIR]``.

Prints Markdown rows. Decisions (hits, preemptions, evictions) must come out the same anywhere; CPU seconds and peak
memory are those of this machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

MOONCAKE = "mooncake/conversation_trace.jsonl.gz"
AZURE = "azure/AzureLLMInferenceTrace_conv.csv.gz"
MEASURED = "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz"

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

MEASURED_OPTIONS = (
    "--gpu rtx-4090 --num-gpu-blocks-override 2588 --max-num-batched-tokens 2048 --max-num-seqs 256 "
    "--max-model-len 32768"
)


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


def measured_rows(folder: Path) -> None:
    """Prediction against a server that was measured (arrivals as the server saw them are not fed back)."""
    run = folder / "llmservingsim/measured/RTX4090_Llama-3.1-8B"
    rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    ticks = list(csv.DictReader((run / "timeseries.csv").read_text().splitlines()))
    peaks = [max(int(float(tick[name])) for tick in ticks) for name in ("running", "waiting")]
    ttft_s = [row["first_token_ts"] - row["queued_ts"] for row in rows]
    tpot_s = [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows]
    span_s = max(row["last_token_ts"] for row in rows) - min(row["queued_ts"] for row in rows)
    summary, _, _ = replay(folder / MEASURED, MEASURED_OPTIONS)
    print("\n| | measured | simulated | |\n| --- | --: | --: | --: |")
    for name, measured, simulated in (
        ("mean TTFT (s)", sum(ttft_s) / len(ttft_s), summary["mean_ttft_ms"] / 1000),
        ("mean TPOT (ms)", 1000 * sum(tpot_s) / len(tpot_s), summary["mean_tpot_ms"]),
        ("duration (s)", span_s, summary["duration"]),
    ):
        print(f"| {name} | {measured:.1f} | {simulated:.1f} | {simulated / measured - 1:+.1%} |")
    simulated_peaks = f"{summary['max_running_requests']} / {summary['max_waiting_requests']}"
    print(f"| peak running / waiting requests | {peaks[0]} / {peaks[1]} | {simulated_peaks} | |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    folder = parser.parse_args().folder
    trace_rows(folder)
    measured_rows(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
