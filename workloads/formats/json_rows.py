"""A row of a trace, with getters that check a value and name file, line and key when it is wrong."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from kvtwin.workloads.errors import WorkloadError

LARGEST = 2**63 - 1
LAST_NS = LARGEST
"""The latest arrival that a workload may have, in ns."""

_EXACT = Context(prec=100, traps=[])
_UNIT_NAMES = {1: "ns", 10**3: "us", 10**6: "ms", 10**9: "s"}


def shown(value: object) -> str:
    """``value`` as an error message shows it: on one line and not too long."""
    if isinstance(value, array):
        value = value.tolist()
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_list(value: object) -> bool:
    """Whether JSON has a list here: one of many integers may be an array."""
    return isinstance(value, list | array)


class JsonRow:
    """One JSON object of a file. ``source`` is ``file:line``; decimal numbers are `Decimal`, hence exact.

    A long list of integers, none of them negative, may be an array (:mod:`kvtwin.workloads.formats.json_lines`).
    """

    __slots__ = ("source", "values")

    place = "key"
    """What a value lies under."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        self.source = source
        self.values = values

    def error(self, key: str, message: str) -> WorkloadError:
        return WorkloadError(self.source, f"{key}: {message}")

    def required(self, key: str) -> Any:
        """The value of ``key``; raises `WorkloadError` when the key is missing."""
        try:
            return self.values[key]
        except KeyError:
            raise self.error(key, f"expected this {self.place}, but it is missing") from None

    def integer(self, key: str, minimum: int | None = None) -> int:
        """The int under ``key``, at least ``minimum``."""
        value = self.required(key)
        if type(value) is not int or (minimum is not None and value < minimum):
            wanted = "an integer" if minimum is None else f"an integer of at least {minimum}"
            raise self.error(key, f"expected {wanted}, got {shown(value)}")
        if abs(value) > LARGEST:
            raise self.error(key, f"expected an integer in 64 bits, got {shown(value)}")
        return value

    def text(self, key: str) -> str:
        """The string under ``key``."""
        value = self.required(key)
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, got {shown(value)}")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(key, f"expected Unicode text, got half a surrogate pair: {shown(value)}")
        return value

    def boolean(self, key: str) -> bool:
        """The truth value under ``key``."""
        value = self.required(key)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {shown(value)}")
        return value

    def time_ns(self, key: str, unit_ns: int) -> int:
        """The time under ``key``, counted there in units of ``unit_ns``, as whole ns (ties to even)."""
        value = self.required(key)
        if type(value) not in (int, Decimal) or value < 0 or value > LAST_NS:
            unit = _UNIT_NAMES.get(unit_ns, f"units of {unit_ns} ns")
            raise self.error(key, f"expected a time of 0 or more {unit}, got {shown(value)}")
        if type(value) is int:
            time_ns = value * unit_ns
        else:
            time_ns = int(_EXACT.multiply(value, Decimal(unit_ns)).to_integral_value(ROUND_HALF_EVEN, _EXACT))
        if time_ns > LAST_NS:
            raise self.error(key, f"expected at most {LAST_NS} ns (292 years), got {shown(value)}")
        return time_ns

    def names(self, key: str) -> Sequence[int | str]:
        """The list of ints of any size, or strings, under ``key``."""
        names = self.required(key)
        if not is_list(names):
            raise self.error(key, f"expected a list, got {shown(names)}")
        if set(map(type, names)) - {int, str}:
            wrong = next(name for name in names if type(name) not in (int, str))
            raise self.error(key, f"expected integers or strings, got {shown(wrong)}")
        return names

    def block_names(self, key: str, num_tokens: int, block_tokens: int) -> Sequence[int | str]:
        """Names of a prompt's full blocks of ``block_tokens``, or of its started ones, under ``key``."""
        names = self.names(key)
        full, started = num_tokens // block_tokens, -(-num_tokens // block_tokens)
        if len(names) not in (full, started):
            raise self.error(key, f"expected {num_tokens}/{block_tokens} = {full} or {started} ids, got {len(names)}")
        return names

    def integers(self, key: str, minimum: int | None = None) -> Sequence[int]:
        """The list of ints under ``key``, each at least ``minimum``."""
        ids = self.required(key)
        if isinstance(ids, array) and not minimum:
            return ids
        if not is_list(ids):
            raise self.error(key, f"expected a list of integers, got {shown(ids)}")
        for index, value in enumerate(ids) if set(map(type, ids)) - {int} else ():
            if type(value) is not int:
                raise self.error(f"{key}[{index}]", f"expected an integer, got {shown(value)}")
        smallest, largest = (min(ids), max(ids)) if ids else (0, 0)
        if minimum is not None and ids and smallest < minimum:
            raise self.error(key, f"expected integers of at least {minimum}, got {smallest}")
        if max(largest, -smallest) > LARGEST:
            raise self.error(key, f"expected integers in 64 bits, got {shown(max(ids, key=abs))}")
        return ids

    def object(self, key: str) -> JsonRow:
        """The JSON object under ``key``, as a row that names itself ``key``."""
        value = self.required(key)
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object, got {shown(value)}")
        return JsonRow(f"{self.source}: {key}", value)

    def objects(self, key: str) -> list[JsonRow]:
        """The list of JSON objects under ``key``, as rows that name themselves ``key[index]``."""
        values = self.required(key)
        if not is_list(values):
            raise self.error(key, f"expected a list of objects, got {shown(values)}")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.error(f"{key}[{index}]", f"expected an object, got {shown(value)}")
        return [JsonRow(f"{self.source}: {key}[{index}]", value) for index, value in enumerate(values)]
