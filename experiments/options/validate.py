"""The options of ``kvtwin validate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kvtwin.experiments.options.device import DeviceOptions
from kvtwin.experiments.options.fields import argument, option, with_default
from kvtwin.experiments.options.kinds import File, Number, Switch, Text, Whole
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sizing import SizingOptions

_MEASURED = "the device's memory is measured; set the cache's size with --kv-cache-memory-bytes"

ELSEWHERE: Mapping[str, tuple[Any, str]] = {
    "server": ("vllm", "validation runs what vLLM decides"),
    "gpu": (None, "use --device"),
    "tensor_parallel_size": (1, "validation uses a single device"),
    "pipeline_parallel_size": (1, "validation uses a single device"),
    "kv_cache_dtype": ("auto", "validation keeps the cache in the model's dtype"),
    "enable_expert_parallel": (False, "validation uses a single device"),
    "speculative_config": (None, "validation does not run a draft model"),
    "allocator": ("paged", "validation always uses paged blocks"),
    "ignore_eos": (True, "validation uses the workload's output lengths"),
    "executor": (None, "only for `kvtwin replay`"),
    "events": (False, "only for `kvtwin replay`"),
    "kv_events": (False, "only for `kvtwin replay`"),
    "weight_bytes": (None, _MEASURED),
    "activation_peak_bytes": (None, _MEASURED),
    "cuda_graph_bytes": (None, _MEASURED),
    "enforce_eager": (False, _MEASURED),
    "other_bytes": (None, _MEASURED),
}
"""Options of a replay that a real run cannot follow, by name: the only value that they may have, and why."""


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(ReplayOptions, DeviceOptions):
    """Validation."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset(ELSEWHERE)

    trace: str = argument(Text("WORKLOAD"), "workload file, demo, or a YAML file of trace and options")
    model: str | None = with_default(SizingOptions, "model", "tiny")
    gpu: str | None = with_default(SizingOptions, "gpu", None)
    num_prompts: int | None = option(None, Whole(), "use only the first N requests; --limit means the same", "--limit")
    server_run: Path | None = option(
        None,
        File("DIR"),
        "compare with a server's run instead: its record of requests, and what else was saved of it; takes "
        "the options of `kvtwin replay`",
    )
    length_scale: float = option(1.0, Number("X", 0, 1, above=True), "scale down prompts, outputs and shared prefixes")
    temperature: float = option(0.0, Number("T", 0, 100), "sampling temperature; 0: greedy")
    step_time: str | None = option(  # type: ignore[assignment]  # None: measure first
        None,
        Text("FILE"),
        "step-time model of the prediction: linear, zero, or a YAML file from `kvtwin calibrate` "
        "(default: a quick calibration first)",
    )
    debug: bool = option(False, Switch(has_off=False), "fill blocks that no request may read with NaN")
