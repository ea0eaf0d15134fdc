"""The options of a replay, and of every command that replays."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import with_default
from kvtwin.experiments.options.host_memory import HostMemoryOptions
from kvtwin.experiments.options.load import LoadOptions
from kvtwin.experiments.options.output import EventOptions, OutputOptions
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.sessions import SessionOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.options.speculation import SpeculationOptions
from kvtwin.experiments.options.step_time import StepTimeOptions
from kvtwin.experiments.options.trace import TraceOptions

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"
DEFAULT_GPU = "h200"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(
    TraceOptions,
    SizingOptions,
    EngineOptions,
    SpeculationOptions,
    HostMemoryOptions,
    LoadOptions,
    SessionOptions,
    StepTimeOptions,
    OutputOptions,
    EventOptions,
    ReplicaOptions,
):
    """Options of ``kvtwin replay``."""

    model: str | None = with_default(SizingOptions, "model", DEFAULT_MODEL)
    gpu: str | None = with_default(SizingOptions, "gpu", DEFAULT_GPU)
