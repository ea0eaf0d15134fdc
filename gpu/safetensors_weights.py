"""Weights from a Hugging Face checkpoint: a folder with one safetensors file, or with shards and an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from kvtwin.gpu.decoder_weights import check_shape
from kvtwin.gpu.errors import DeviceError, first_line

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = ("F64", "F32", "F16", "BF16")
_COMPUTED = ".rotary_emb.inv_freq"
"""Old Llama checkpoints carry what follows from the config."""


class SafetensorsWeights:
    """The tensors of a checkpoint, read one at a time from memory-mapped files."""

    def __init__(self, folder: Path) -> None:
        """DeviceError: no such files, or damaged ones."""
        self.label = str(folder)
        self._file_of: dict[str, Any] = {}
        for path in _files(folder):
            file = _open(path)
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def names(self) -> list[str]:
        """All tensors but those that follow from the config."""
        return [name for name in self._file_of if not name.endswith(_COMPUTED)]

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor as it is stored. DeviceError: missing, of another shape, or not of floats."""
        file = self._file_of.get(name)
        if file is None:
            raise DeviceError(f"{self.label}: {name} is missing")
        stored = file.get_slice(name)
        check_shape(self.label, name, stored.get_shape(), shape)
        if (dtype := stored.get_dtype()) not in _DTYPES:
            raise DeviceError(f"{self.label}: {name} has dtype {dtype}; expected one of {', '.join(_DTYPES)}")
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        if not (folder / _SINGLE).exists():
            raise DeviceError(f"{folder}: has neither {_SINGLE} nor {_INDEX}")
        return [folder / _SINGLE]
    try:
        weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        return [folder / name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeviceError(f"{index}: not an index of shards with a table weight_map ({error!r})") from error


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise DeviceError(f"{path}: not readable as safetensors ({first_line(error)})") from error
