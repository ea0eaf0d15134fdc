"""Write the comparison with measured servers into docs/accuracy.md and README.md: ``make accuracy [TRACES=DIR]``.

Every public run is shown with every step-time model that knows its GPU, whatever comes out. What is simulated is
deterministic: the same figures come out anywhere.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import kvtwin as kv
from kvtwin.experiments.calibration.server import ServerFit, fit_to_server
from kvtwin.experiments.server_runs.latencies import Comparison, compare_latencies
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import ServedRequest, arriving_as_served, served_in_run

REPOSITORY = Path(__file__).parents[1]
LLAMA = "sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz"
QWEN = "sharegpt-qwen3-300-sps10.relabelled.jsonl.gz"


class ServerRun(NamedTuple):
    """A measured run of vLLM 0.19.0, and the options of the server that it is compared with."""

    title: str
    folder: str
    trace: str
    options: Mapping[str, Any]


_COMMON = {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2048}
"""Of all four; 0.9 is the default of vLLM 0.19."""

RUNS = (
    ServerRun(
        "Llama-3.1-8B on an RTX 4090",
        "RTX4090_Llama-3.1-8B",
        LLAMA,
        {
            "model": "Llama-3.1-8B",
            "gpu": "rtx-4090",
            "max_num_seqs": 256,
            "max_model_len": 32768,
            "num_gpu_blocks_override": 2588,
        },
    ),
    ServerRun(
        "Llama-3.1-8B on an RTX PRO 6000",
        "RTXPRO6000_Llama-3.1-8B",
        LLAMA,
        {"model": "Llama-3.1-8B", "gpu": "rtx-pro-6000-server", "max_num_seqs": 128},
    ),
    ServerRun(
        "Qwen3-32B on two RTX PRO 6000, tensor parallel",
        "RTXPRO6000_Qwen3-32B",
        QWEN,
        {"model": "Qwen3-32B", "gpu": "rtx-pro-6000-server", "max_num_seqs": 128, "tensor_parallel_size": 2},
    ),
    ServerRun(
        "Qwen3-30B-A3B on two RTX PRO 6000, data and expert parallel",
        "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
        QWEN,
        {
            "model": "Qwen3-30B-A3B",
            "gpu": "rtx-pro-6000-server",
            "max_num_seqs": 128,
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
        },
    ),
)

MODELS: Mapping[str, Mapping[str, Any]] = {
    "roofline": {},
    "aic": {"step_time": "aic"},
    "aic, `pcie-nccl`": {"step_time": "aic", "interconnect": "pcie-nccl"},
    "aic, `pcie-host`": {"step_time": "aic", "interconnect": "pcie-host"},
}
"""What is compared, by name: options of a replay. The first is the default; one that cannot be is left out."""


class Peaks(NamedTuple):
    """Most requests that ran, and that waited."""

    running: int
    waiting: int


class Simulated(NamedTuple):
    comparisons: list[Comparison]
    peaks: Peaks
    preemptions: int
    num_blocks: int
    """Of each rank."""
    peak_usage: float
    """The largest share of them that was ever used."""


class Result(NamedTuple):
    """One measured run, and each model's simulation of it."""

    run: ServerRun
    peaks: Peaks
    by_model: dict[str, Simulated]


def measured_peaks(path: Path) -> Peaks:
    """As the server's log showed them once a second."""
    ticks = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    return Peaks(*(max(int(float(tick[name])) for tick in ticks) for name in Peaks._fields))


def simulate(folder: Path, run: ServerRun, served: Sequence[ServedRequest], model: Mapping[str, Any]) -> Simulated:
    """The measured run again, with its arrivals as the server saw them."""
    records = arriving_as_served(kv.open_workload(folder / run.trace), served)
    ours = kv.replay(records, progress=False, **{**_COMMON, **run.options, **model})
    summary = ours.summary
    columns = {name: ours.requests[name].to_numpy() for name in ours.requests}
    return Simulated(
        compare_latencies(served, served_in_run(columns)),
        Peaks(summary["max_running_requests"], summary["max_waiting_requests"]),
        summary["num_preemptions"],
        ours.configuration["engine"]["num_blocks"],
        summary["kv_cache_usage_peak"],
    )


def results(folder: Path, models: Mapping[str, Mapping[str, Any]] = MODELS) -> list[Result]:
    """All runs with all models."""
    found = []
    for run in RUNS:
        record = folder / "measured" / run.folder
        served = read_served(record)
        by_model = {}
        for name, options in models.items():
            try:
                by_model[name] = simulate(folder, run, served, options)
            except kv.UserError as error:
                print(f"left out: {run.title}: {name}: {error}", file=sys.stderr)
        found.append(Result(run, measured_peaks(record / "timeseries.csv"), by_model))
    return found


MEMORY_SHARES = (0.85, 0.9, 0.92, 0.95)
"""Of the GPU, tried for runs that recorded no number of blocks: vLLM's defaults, then and now, and beside them."""

KEYS = ("mean TPOT", "mean TTFT", "mean E2E", "makespan")


def with_other_shares(folder: Path) -> list[str]:
    """The table of runs whose memory nobody recorded, each with every share that is likely."""
    lines = [
        f"| run | share | blocks | most used | {' | '.join(KEYS)} |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for run in RUNS:
        if "num_gpu_blocks_override" in run.options:
            continue
        served = read_served(folder / "measured" / run.folder)
        for share in MEMORY_SHARES:
            found = simulate(folder, run, served, {"gpu_memory_utilization": share})
            cells = [run.title, f"{share}", f"{found.num_blocks:,}", f"{found.peak_usage:.0%}", *_errors_of(found)]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def _errors_of(simulated: Simulated) -> list[str]:
    errors = {each.name: each.error for each in simulated.comparisons}
    return [f"{errors[key]:+.1%}" for key in KEYS]


THIRD = 1 / 3


def _options(run: ServerRun, base: str) -> dict[str, Any]:
    return {**_COMMON, **run.options, "step_time": base}


def _fit(folder: Path, run: ServerRun, base: str, until_ns: float) -> ServerFit:
    """A calibration on a run, as far as was known at ``until_ns``."""
    with tempfile.TemporaryDirectory() as scratch:
        server = Path(scratch) / "server.yaml"
        options = {name.replace("_", "-"): value for name, value in _options(run, base).items()}
        server.write_text(yaml.safe_dump({"trace": str(folder / run.trace), "options": options}), encoding="utf-8")
        return fit_to_server(folder / "measured" / run.folder, server, known_until_ns=until_ns)


def _errors_with(
    folder: Path, run: ServerRun, fit: ServerFit, served: Sequence[ServedRequest], tested: Sequence[int]
) -> dict[str, float]:
    """Of the run's simulation with fitted step times: errors on the requests at places ``tested``."""
    records = arriving_as_served(kv.open_workload(folder / run.trace), served)
    for index, each in enumerate(records):
        each.request_id = str(index)
    with tempfile.TemporaryDirectory() as scratch:
        fitted = Path(scratch) / "fitted.yaml"
        fitted.write_text(yaml.safe_dump(fit.data()), encoding="utf-8")
        ours = kv.replay(records, progress=False, **_options(run, str(fitted)))
    columns = {name: ours.requests[name].to_numpy() for name in ours.requests}
    simulated = {int(request.request_id): request for request in served_in_run(columns)}
    rows = compare_latencies([served[index] for index in tested], [simulated[index] for index in tested])
    return {each.name: each.error for each in rows}


def on_the_rest(folder: Path, run: ServerRun, base: str) -> list[str]:
    """A row: fitted to what was known when a third of the makespan had passed, errors on requests that end later."""
    served = read_served(folder / "measured" / run.folder)
    until_ns = max(request.last_token_ns for request in served) * THIRD
    fit = _fit(folder, run, base, until_ns)
    late = [index for index, request in enumerate(served) if request.last_token_ns > until_ns]
    errors = _errors_with(folder, run, fit, served, late)
    numbers = [
        f"{value:.2f} ({low:.2f} to {high:.2f})"
        for value, (low, high) in zip(fit.adjustment.scales[:2], fit.adjustment.intervals, strict=False)
    ]
    low_us, high_us = (bound / 1000 for bound in fit.adjustment.intervals[2])
    numbers.append(f"{fit.adjustment.scales.step_ns / 1000:,.0f} ({low_us:,.0f} to {high_us:,.0f})" if high_us else "-")
    keys = ("mean TPOT", "mean TTFT", "p90 TTFT", "mean E2E", "makespan")
    return [run.title, base, *numbers, *(f"{errors[key]:+.1%}" for key in keys)]


def on_the_others(folder: Path) -> list[str]:
    """The table of calibrations on a whole run, tested on the others; the roofline knows all of their GPUs."""
    records = [read_served(folder / "measured" / run.folder) for run in RUNS]
    lines = [
        f"| mean TPOT / mean E2E, calibrated on | {' | '.join(run.title for run in RUNS)} |",
        f"| --- | {' | '.join('--:' for _ in RUNS)} |",
    ]
    for source in RUNS:
        fit = _fit(folder, source, "roofline", float("inf"))
        cells = []
        for run, served in zip(RUNS, records, strict=True):
            errors = _errors_with(folder, run, fit, served, range(len(served)))
            text = f"{errors['mean TPOT']:+.1%} / {errors['mean E2E']:+.1%}"
            cells.append(f"({text})" if run is source else text)
        lines.append(f"| {source.title} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def calibrated(folder: Path) -> list[str]:
    """The table of calibrations: with aic where there are tables, else with the roofline."""
    lines = [
        "| run | base | `decode_scale` | `prefill_scale` | us per step | mean TPOT | mean TTFT | p90 TTFT "
        "| mean E2E | makespan |",
        "| --- | --- | --- | --- | --- | --: | --: | --: | --: | --: |",
    ]
    for run in RUNS:
        base = "roofline" if run.options["gpu"] == "rtx-4090" else "aic"
        lines.append(f"| {' | '.join(on_the_rest(folder, run, base))} |")
        print(lines[-1], flush=True)
    return lines


def overview(found: Sequence[Result]) -> list[str]:
    """Errors of the means: a row per run and model."""
    lines = [
        f"| run | step time | {' | '.join(KEYS)} |",
        "| --- | --- | --: | --: | --: | --: |",
    ]
    for result in found:
        for name, simulated in result.by_model.items():
            lines.append(f"| {' | '.join([result.run.title, name, *_errors_of(simulated)])} |")
    return lines


def details(result: Result) -> list[str]:
    """All figures of one run: a column per model."""
    models = list(result.by_model)
    lines = [
        f"### {result.run.title}",
        "",
        f"| | measured | {' | '.join(models)} |",
        f"| --- | --: | {' | '.join('--:' for _ in models)} |",
    ]
    sides = [result.by_model[name].comparisons for name in models]
    for row in zip(*sides, strict=True):
        digits = 1 if row[0].unit == "ms" else 2
        cells = [f"{each.simulated:.{digits}f} ({each.error:+.1%})" for each in row]
        lines.append(f"| {row[0].name} ({row[0].unit}) | {row[0].measured:.{digits}f} | {' | '.join(cells)} |")
    for index, name in enumerate(Peaks._fields):
        cells = [f"{result.by_model[model].peaks[index]}" for model in models]
        lines.append(f"| peak {name} requests | {result.peaks[index]} | {' | '.join(cells)} |")
    cells = [f"{result.by_model[model].preemptions}" for model in models]
    lines.append(f"| preemptions | not recorded | {' | '.join(cells)} |")
    return lines


def best_and_worst(found: Sequence[Result]) -> list[str]:
    """The default's best and worst run, by the error of the mean E2E latency."""

    def size(result: Result) -> float:
        return abs(_errors(result)["mean E2E"])

    lines = ["| | mean TPOT | mean TTFT | mean E2E |", "| --- | --: | --: | --: |"]
    for word, result in (("best", min(found, key=size)), ("worst", max(found, key=size))):
        errors = _errors(result)
        cells = [f"{errors[f'mean {name}']:+.0%}" for name in ("TPOT", "TTFT", "E2E")]
        lines.append(f"| {word}: {result.run.title} | {' | '.join(cells)} |")
    return lines


def _errors(result: Result) -> dict[str, float]:
    default = next(iter(result.by_model.values()))
    return {each.name: each.error for each in default.comparisons}


def replace_part(path: Path, name: str, lines: Sequence[str]) -> None:
    """Put ``lines`` between the comments ``<!-- name: ... -->`` and ``<!-- end of name -->`` of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(\n<!-- end of {name} -->)", re.DOTALL)
    changed, count = pattern.subn(lambda found: found[1] + "\n" + "\n".join(lines) + "\n" + found[2], text)
    if count != 1:
        raise SystemExit(f"{path}: expected one part between comments named {name!r}, found {count}")
    path.write_text(changed, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of public traces")
    parser.add_argument("--calibrated", action="store_true", help="also calibrate on the first third of each run")
    options = parser.parse_args()
    folder = options.folder / "llmservingsim"
    found = results(folder)
    tables = overview(found)
    for result in found:
        tables += ["", *details(result)]
    replace_part(REPOSITORY / "docs" / "accuracy.md", "measured servers", tables)
    replace_part(REPOSITORY / "README.md", "accuracy", best_and_worst(found))
    print("\n".join(overview(found)), flush=True)
    replace_part(REPOSITORY / "docs" / "accuracy.md", "memory shares", with_other_shares(folder))
    if options.calibrated:
        replace_part(REPOSITORY / "docs" / "accuracy.md", "calibrated", calibrated(folder))
        replace_part(REPOSITORY / "docs" / "accuracy.md", "calibrated elsewhere", on_the_others(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
