"""The fields of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtwin.engine.sizing.model_shape import ModelConfigError


class Fields:
    """The fields of a config.json, read with errors that name the model and the field."""

    def __init__(self, values: dict[str, Any], name: str, model_type: str) -> None:
        self._values = values
        self.name = name
        self.model_type = model_type

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def get(self, key: str) -> Any:
        """The field, or None."""
        return self._values.get(key)

    def first(self, *keys: str) -> Any:
        """The first of several names that has a value; model families name the same thing differently."""
        return next((self._values[key] for key in keys if self._values.get(key) is not None), None)

    def count(self, *keys: str) -> int:
        """A whole number of at least 0, under the first of several names that has a value; 0 if none has."""
        value = self.first(*keys)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            key = next(key for key in keys if self._values.get(key) is not None)
            raise ModelConfigError(f"{self.name}: {key} must be a whole number of at least 0, not {value!r}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number. With a ``default`` the field may be missing, null or, as in some files, 0."""
        value = self._values.get(key)
        if default is not None and value in (None, 0):
            return default
        if value is None:
            raise ModelConfigError(f"{self.name}: config.json has no {key}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelConfigError(f"{self.name}: {key} must be a positive whole number, not {value!r}")
        return value

    def per_layer(self, key: str, num_layers: int) -> Sequence[Any]:
        """A field with an entry for every layer; any behind the last layer are left out."""
        values: Sequence[Any] = self._values[key]
        if len(values) < num_layers:
            raise ModelConfigError(f"{self.name}: {key} has {len(values)} entries for {num_layers} layers")
        return values[:num_layers]
