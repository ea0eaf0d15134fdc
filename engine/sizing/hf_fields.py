"""The fields of a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

from engine.sizing.model_shape import ModelConfigError


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

    def integer(self, key: str) -> int:
        """A field that must be there and be a positive whole number."""
        value = self._values.get(key)
        if value is None:
            raise ModelConfigError(f"{self.name}: config.json has no {key}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelConfigError(f"{self.name}: {key} must be a positive whole number, not {value!r}")
        return value
