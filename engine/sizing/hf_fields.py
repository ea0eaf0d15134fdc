"""The fields of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvtwin.engine.sizing.model_shape import ModelConfigError

MOST_LAYERS = 10_000
"""No model has more layers; a file that claims so is wrong."""


class Fields:
    """The fields of a config.json, read with errors that name the model and the field.

    ``read_keys`` are the fields that anybody asked for: the others had no part in the result.
    """

    def __init__(self, values: Mapping[str, Any], name: str, model_type: str) -> None:
        self._values = values
        self.name = name
        self.model_type = model_type
        self.read_keys: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read_keys.add(key)
        return self._values[key]

    def get(self, key: str) -> Any:
        """The field, or None."""
        self.read_keys.add(key)
        return self._values.get(key)

    def has(self, *keys: str) -> bool:
        """Whether any of these fields has a value other than null."""
        return any(self.get(key) is not None for key in keys)

    def stated(self) -> list[str]:
        """The names of the fields that have a value which says something."""
        return [key for key, value in self._values.items() if value not in (None, False, 0, "", [], {})]

    def first(self, *keys: str) -> Any:
        """The first of several names that has a value; model families name the same thing differently."""
        return next((self._values[key] for key in keys if self.get(key) is not None), None)

    def count(self, *keys: str) -> int:
        """A whole number of at least 0, under the first of several names that has a value; 0 if none has."""
        value = self.first(*keys)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(self._found(keys), "a whole number of at least 0", value)
        return value

    def integer(self, *keys: str, default: int | None = None) -> int:
        """A positive whole number, under the first of several names that has a value.

        With a ``default`` the field may be missing, null or, as in some files, 0.
        """
        value = self.first(*keys)
        if default is not None and value in (None, 0):
            return default
        if value is None:
            raise ModelConfigError(f"{self.name}: config.json has no {keys[0]}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(self._found(keys), "a positive whole number", value)
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number; ``default`` where it is missing or null."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, "a positive number", value)
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return bool(value)

    def mapping(self, key: str) -> Fields:
        """The fields inside a field; none where it is missing or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Fields(value or {}, f"{self.name}: {key}", self.model_type)

    def num_layers(self) -> int:
        """The number of decoder layers; where no field states it, that of the entries of a list of their kinds."""
        kinds = self.first("layers_block_type", "hybrid_override_pattern")
        listed = len(kinds) if isinstance(kinds, list | str) and not self.has("num_hidden_layers") else None
        count = self.integer("num_hidden_layers", default=listed or None)
        if count > MOST_LAYERS:
            raise self._wrong("num_hidden_layers", f"at most {MOST_LAYERS}", count)
        return count

    def per_layer(self, key: str, num_layers: int) -> Sequence[Any]:
        """A list, or a text, with an entry for every layer; any behind the last layer are left out."""
        values = self.get(key)
        if not isinstance(values, list | str):
            raise self._wrong(key, "a list with an entry for every layer", values)
        if len(values) < num_layers:
            raise ModelConfigError(f"{self.name}: {key} has {len(values)} entries for {num_layers} layers")
        return values[:num_layers]

    def layer_numbers(self, key: str) -> frozenset[int]:
        """A list of layers by their numbers; empty where it is missing or null."""
        values = self.get(key)
        if values is None:
            return frozenset()
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise self._wrong(key, "a list of layer numbers", values)
        return frozenset(values)

    def listed_numbers(self, key: str) -> frozenset[int]:
        """Layers by their numbers, in a text with commas between them."""
        text = self.get(key)
        if not isinstance(text, str) or not all(word.strip().isdecimal() for word in text.split(",")):
            raise self._wrong(key, "layer numbers with commas between them", text)
        return frozenset(int(word) for word in text.split(","))

    def _found(self, keys: Sequence[str]) -> str:
        return next(key for key in keys if self._values.get(key) is not None)

    def _wrong(self, key: str, expected: str, value: object) -> ModelConfigError:
        text = repr(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return ModelConfigError(f"{self.name}: {key} must be {expected}, not {shown}")
