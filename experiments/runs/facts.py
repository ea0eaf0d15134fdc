"""What every run records besides its figures: its settings, when and where it ran, its progress."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.options.reading import as_plain
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.summary import RunContext
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.load import Load
from kvtwin.workloads.time_units import SECOND_NS


class Stopwatch:
    """How long this computer needs, from here on."""

    def __init__(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()

    def facts(self) -> dict[str, Any]:
        """The time so far, and the computer."""
        return {
            "date": now(),
            "wall_s": round(time.perf_counter() - self._started_s, 3),
            "cpu_s": round(time.process_time() - self._started_cpu_s, 3),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }


def now() -> str:
    """The date as ``vllm bench serve`` writes it."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


_NOT_KEPT = ("out", "json", "executor")
"""Options that change nothing in the results."""


def run_configuration(
    command: str,
    options: ReplayOptions,
    sizing: SizingResult,
    gpu: str | None,
    config: EngineConfig,
    step_time: dict[str, Any],
) -> dict[str, Any]:
    """Everything resolved that decided a run. ``gpu`` names the device."""
    return {
        "kvtwin_version": kvtwin_version(),
        "vllm_version": VLLM_VERSION,
        "command": command,
        "options": {name: value for name, value in as_plain(options).items() if name not in _NOT_KEPT},
        "model": sizing.inputs.shape.name,
        "gpu": gpu,
        "engine": asdict(config),
        "step_time": step_time,
    }


def run_context(sizing: SizingResult, load: Load, recorder: Recorder) -> RunContext:
    """What the summary of a run says about its load."""
    return RunContext(
        model=sizing.inputs.shape.name,
        num_prompts=load.num_requests,
        request_rate=_request_rate(load, recorder),
        burstiness=load.burstiness,
        max_concurrency=load.max_concurrency,
    )


def _request_rate(load: Load, recorder: Recorder) -> float:
    """The offered rate in requests per second: as asked, or as the trace had it; inf when nothing waits."""
    if load.request_rate is not None:
        return load.request_rate
    arrivals = recorder.requests.arrival_ns
    num_records = len(set(recorder.requests.record_index))
    span_ns = max(arrivals) - min(arrivals) if len(arrivals) else 0
    return math.inf if load.ignores_arrivals or span_ns == 0 else num_records / span_ns * SECOND_NS


@contextmanager
def request_progress(words: str, total: int, *, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Progress on stderr; call it with the number of requests done."""
    with progress(words, "requests", total, show=show) as bar:

        def advance(num_done: int) -> None:
            bar.update(num_done - bar.n)

        yield advance
