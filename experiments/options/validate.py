"""The options of ``kvtwin validate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvtwin.experiments.options.device import DeviceOptions
from kvtwin.experiments.options.fields import argument, option, with_default
from kvtwin.experiments.options.kinds import Number, Switch, Text, Whole
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sizing import SizingOptions

_MEASURED = "the device's memory is measured; --kv-cache-memory-bytes says how much the cache has"

ELSEWHERE: Mapping[str, tuple[Any, str]] = {
    "gpu": (None, "the device is --device"),
    "tensor_parallel_size": (1, "one device computes here"),
    "pipeline_parallel_size": (1, "one device computes here"),
    "kv_cache_dtype": ("auto", "the cache is of the model's dtype here"),
    "speculative_config": (None, "drafts are not computed here"),
    "allocator": ("paged", "blocks are paged on a device"),
    "ignore_eos": (True, "outputs are as long as the workload says"),
    "events": (False, "for `kvtwin replay`"),
    "kv_events": (False, "for `kvtwin replay`"),
    "weight_bytes": (None, _MEASURED),
    "activation_peak_bytes": (None, _MEASURED),
    "cuda_graph_bytes": (None, _MEASURED),
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
    num_prompts: int | None = option(None, Whole(), "only the first N requests; --limit is the same", "--limit")
    length_scale: float = option(1.0, Number("X", 0, 1, above=True), "shorten prompts, outputs and what prompts share")
    temperature: float = option(0.0, Number("T", 0, 100), "of sampling; 0: greedy")
    step_time: str | None = option(  # type: ignore[assignment]  # None: measure first
        None,
        Text("FILE"),
        "what predicts: linear, zero, or a YAML file, as of `kvtwin calibrate` (else a quick calibration comes first)",
    )
    debug: bool = option(False, Switch(has_off=False), "fill blocks that nobody may read with NaN")
