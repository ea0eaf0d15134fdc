"""``python -m tests.bench.of_replicas TRACES``: what four replicas cost, beside their own parts replayed alone.

Both take turns in one process and read nothing meanwhile; times are CPU seconds, of each the fastest repeat.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayCommandOptions
from kvtwin.experiments.runs.kept import replay_and_keep
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.workloads.workload import Workload

TRACES = {
    "Mooncake conversation": "mooncake/conversation_trace.jsonl.gz",
    "Azure conversation 2023": "azure/AzureLLMInferenceTrace_conv.csv.gz",
}
ROUTERS = ("round-robin", "session", "least-loaded", "vllm-dp", "cache_aware")
NUM_REPLICAS = 4
_EVERYTHING = 10**9


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.of_replicas", description=__doc__)
    parser.add_argument("traces", type=Path, help="the folder of public traces")
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--trace", default="", help="only those whose name has this in it")
    given = parser.parse_args()
    print("| workload | router | together, CPU s | alone, CPU s | ratio | of it the router, s |")
    print("| --- | --- | --: | --: | --: | --: |")
    for title, path in TRACES.items():
        for router in given.routers.split(",") if given.trace in title else ():
            together, alone, of_router = compare(given.traces / path, router, given.requests, given.repeats)
            figures = (together, alone, together / alone, of_router)
            print(f"| {title} | `{router}` | {' | '.join(f'{figure:.2f}' for figure in figures)} |", flush=True)


def compare(trace: Path, router: str, num_requests: int, repeats: int) -> tuple[float, float, float]:
    """CPU seconds of a cluster, and of its replicas' parts one after the other; and wall seconds of the router."""
    words = {"trace": str(trace), "num_prompts": num_requests, "num_gpu_blocks_override": 10_000, "router": router}
    options = read_options(ReplayCommandOptions, words | {"data_parallel_size": NUM_REPLICAS}, "kvtwin replay")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        kept = replay_and_keep(replace(options, out=folder), show_progress=False)
        sent = [row["num_prompts"] for row in kept.summary["replicas"]]
        parts = [str(folder / f"replica-{number}" / "trace.jsonl.gz") for number, count in enumerate(sent) if count]
        alone = replace(options, data_parallel_size=1, router=ReplayCommandOptions.router)
        held = [(replace(alone, trace=path), _held(path, alone)) for path in parts]
        whole = _held(str(trace), options)
    times = [
        (
            _cpu_s(lambda: replay(options, whole)),
            sum(_cpu_s(lambda one=one, part=part: replay(one, part)) for one, part in held),
        )
        for _ in range(repeats)
    ]
    return min(time for time, _ in times), min(time for _, time in times), kept.machine["router_s"]


def _held(path: str, options: ReplayCommandOptions) -> Workload:
    return open_trace(path, options).held(_EVERYTHING)


def _cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
