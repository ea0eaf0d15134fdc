"""What a path holds: a decoder's config, and its weights if they are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from gpu.decoder_config import DecoderConfig, read_decoder_config
from gpu.decoder_weights import WeightSource
from gpu.errors import DeviceError
from gpu.gguf_weights import GgufWeights
from gpu.safetensors_weights import SafetensorsWeights


class ModelFiles(NamedTuple):
    """A model on disk."""

    config: DecoderConfig
    source: WeightSource | None
    """None: a config alone, to be filled with random weights."""


def read_model_files(path: Path) -> ModelFiles:
    """A GGUF file; a folder with config.json and safetensors; or a config.json. DeviceError: none, or damaged."""
    if path.suffix == ".gguf":
        weights = GgufWeights(path)
        return ModelFiles(weights.config, weights)
    if path.is_dir():
        return ModelFiles(_read_config(path / "config.json"), SafetensorsWeights(path))
    return ModelFiles(_read_config(path), None)


def _read_config(path: Path) -> DecoderConfig:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DeviceError(f"{path}: not a readable config.json ({str(error).splitlines()[0]})") from error
    if not isinstance(config, dict):
        raise DeviceError(f"{path}: a config.json is a table of fields")
    return read_decoder_config(config, str(path))
