"""What a path holds: a decoder's config and its weights."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from kvtwin.gpu.decoder_config import DecoderConfig, read_decoder_config
from kvtwin.gpu.decoder_weights import WeightSource
from kvtwin.gpu.errors import DeviceError, first_line
from kvtwin.gpu.gguf_weights import GgufWeights
from kvtwin.gpu.safetensors_weights import SafetensorsWeights


class ModelFiles(NamedTuple):
    """A model on disk."""

    config: DecoderConfig
    source: WeightSource


def read_model_files(path: Path) -> ModelFiles:
    """A GGUF file, or a folder with config.json and safetensors. DeviceError: neither, or damaged."""
    if path.suffix == ".gguf":
        weights = GgufWeights(path)
        return ModelFiles(weights.config, weights)
    if not path.is_dir():
        raise DeviceError(f"{path}: expected a folder of safetensors or a GGUF file")
    return ModelFiles(_read_config(path / "config.json"), SafetensorsWeights(path))


def read_weights(path: Path, config: DecoderConfig) -> WeightSource:
    """The weights in ``path`` for the model of ``config``. DeviceError: they are of another model."""
    found = read_model_files(path)
    for field in fields(config):
        there, expected = getattr(found.config, field.name), getattr(config, field.name)
        if isinstance(expected, int) and there != expected:
            raise DeviceError(f"{path}: {field.name} is {there}, and {expected} in {config.name}")
    return found.source


def _read_config(path: Path) -> DecoderConfig:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DeviceError(f"{path}: not a readable config.json ({first_line(error)})") from error
    if not isinstance(config, dict):
        raise DeviceError(f"{path}: a config.json is a table of fields")
    return read_decoder_config(config, str(path))
