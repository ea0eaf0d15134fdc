"""The options of one replay, which every command that replays has, and those of ``kvtwin replay`` itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import option, with_default
from kvtwin.experiments.options.host_memory import HostMemoryOptions
from kvtwin.experiments.options.kinds import Switch, Texts
from kvtwin.experiments.options.load import LoadOptions
from kvtwin.experiments.options.output import EventOptions, OutputOptions
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.server import ServerOptions
from kvtwin.experiments.options.sessions import SessionOptions
from kvtwin.experiments.options.sglang import SGLANG_REFUSED, SglangOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.options.speculation import SpeculationOptions
from kvtwin.experiments.options.step_time import STEP_TIME_HELP, StepTimeOptions
from kvtwin.experiments.options.trace import TraceOptions
from kvtwin.experiments.options.trtllm import TrtllmOptions

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"
DEFAULT_GPU = "h200"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(
    TraceOptions,
    ServerOptions,
    SizingOptions,
    EngineOptions,
    SpeculationOptions,
    HostMemoryOptions,
    LoadOptions,
    SessionOptions,
    SglangOptions,
    StepTimeOptions,
    OutputOptions,
    EventOptions,
    ReplicaOptions,
    TrtllmOptions,
):
    """Options of one replay."""

    REFUSED: ClassVar[Mapping[str, str]] = {
        **SizingOptions.REFUSED,
        **SGLANG_REFUSED,
        "--spread": "only for `kvtwin replay`",
    }

    model: str | None = with_default(SizingOptions, "model", DEFAULT_MODEL)
    gpu: str | None = with_default(SizingOptions, "gpu", DEFAULT_GPU)


@dataclass(frozen=True, kw_only=True)
class ReplayCommandOptions(ReplayOptions):
    """Uncertainty."""

    REFUSED: ClassVar[Mapping[str, str]] = {**SizingOptions.REFUSED, **SGLANG_REFUSED}

    step_time: str = option(  # as in StepTimeOptions, or several of these
        ReplayOptions.step_time,
        Texts("MODEL"),
        f"{STEP_TIME_HELP}; give it twice to see both side by side",
    )

    spread: bool = option(
        False,
        Switch(has_off=False),
        "repeat the run with steps 20 % shorter and longer and with random ones, and print how far figures are apart",
    )
