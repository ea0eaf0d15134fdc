"""The options of ``kvtwin size``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import fields_of, option
from kvtwin.experiments.options.host_memory import HostMemoryOptions
from kvtwin.experiments.options.kinds import File, Text
from kvtwin.experiments.options.output import JsonOption
from kvtwin.experiments.options.replay import DEFAULT_GPU, DEFAULT_MODEL
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.server import ServerOptions
from kvtwin.experiments.options.sglang import SGLANG_REFUSED, SglangOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.options.speculation import SpeculationOptions
from kvtwin.experiments.options.trace import FormatOptions
from kvtwin.experiments.options.trtllm import TrtllmCacheOptions

_NO_SIZE = "does not change the size of the cache; use it with `kvtwin replay`"


@dataclass(frozen=True, kw_only=True)
class SizeOptions(
    ServerOptions, SizingOptions, SpeculationOptions, TrtllmCacheOptions, SglangOptions, FormatOptions, JsonOption
):
    """Trace."""

    REFUSED: ClassVar[Mapping[str, str]] = {**SizingOptions.REFUSED, **SGLANG_REFUSED} | {
        flag: _NO_SIZE
        for options in (EngineOptions, HostMemoryOptions, ReplicaOptions)
        for field in fields_of(options)
        for flag in (field.flag, *field.aliases)
    }

    model: str | None = option(
        None, Text("NAME"), f"as for a replay (default: {DEFAULT_MODEL}; with --log, what the log says)"
    )
    gpu: str | None = option(None, Text("NAME"), f"as for a replay (default: {DEFAULT_GPU}; with --log, what it says)")
    log: Path | None = option(
        None, File(), "start-up log of a vLLM server: show what is predicted for it beside what it logged"
    )
    trace: str | None = option(None, Text("TRACE"), "workload file: show how many requests of its lengths fit")

    def as_for_a_replay(self) -> SizeOptions:
        """With the model and the GPU that a replay has where none is named."""
        return replace(self, model=self.model or DEFAULT_MODEL, gpu=self.gpu or DEFAULT_GPU)
