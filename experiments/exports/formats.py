"""The formats that a run can be exported to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from kvtwin.experiments.exports import grafana, perfetto, prometheus, vllm_bench
from kvtwin.experiments.records.reader import Run

FORMATS: dict[str, Callable[[Run, TextIO], None]] = {
    "grafana": grafana.export,
    "perfetto": perfetto.export,
    "prometheus": prometheus.export,
    "vllm-bench": vllm_bench.export,
}


def export(name: str, run: Run, file: TextIO) -> None:
    """Write ``run`` to ``file`` in the format ``name``."""
    FORMATS[name](run, file)
