"""The options that choose a device and a model's weights, for the commands that compute on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, File


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Device."""

    device: str = option("cpu", Choice(("cpu", "cuda")), "cpu: torch, one thread, float32; cuda: Triton")
    weights: Path | None = option(
        None, File("PATH"), "the model's weights: a folder of safetensors, or a GGUF file (default: random weights)"
    )
