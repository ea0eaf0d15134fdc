"""What an option takes: each kind reads a value, as text from a command line or as it stands in YAML or Python."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

LARGEST = 2**31 - 1
"""The largest whole number that an option takes, unless it says otherwise: vLLM counts in 32 bits."""

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000 ** (power + 1) for power, prefix in enumerate("KMGT")}
_UNITS |= {f"{prefix}iB": 1024 ** (power + 1) for power, prefix in enumerate("KMGT")}
_MOST_BYTES = 1 << 50


class Kind(Protocol):
    """What values an option takes."""

    @property
    def metavar(self) -> str:
        """What the help puts after the flag; empty for a switch."""

    def read(self, value: Any) -> Any:
        """The value itself. ValueError, ``expected ..., got ...``: it is none of this kind."""


@dataclass(frozen=True)
class Whole:
    """A whole number from ``least`` to ``most``."""

    metavar: str = "N"
    least: int = 1
    most: int = LARGEST
    or_none: bool = False
    """Whether ``None`` may be given as well, which vLLM spells like this."""

    def read(self, value: Any) -> int | None:
        if self.or_none and value in (None, "None"):
            return None
        number = _as(int, value)
        if number is None or not self.least <= number <= self.most:
            none = "None, or " if self.or_none else ""
            raise ValueError(f"expected {none}a whole number from {self.least} to {self.most}, got {_short(value)}")
        return int(number)


@dataclass(frozen=True)
class Number:
    """A finite number from ``least`` to ``most``."""

    metavar: str = "X"
    least: float = 0.0
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is too small."""
    infinite: bool = False
    """Whether infinity may be given as well."""

    def read(self, value: Any) -> float:
        number: float | None = _as(float, value)
        if number is None or not (self._holds(number) or (self.infinite and number == math.inf)):
            raise ValueError(f"expected {self._wanted()}, got {_short(value)}")
        return number

    def _holds(self, number: float) -> bool:
        return math.isfinite(number) and self.least <= number <= self.most and not (self.above and number == self.least)

    def _wanted(self) -> str:
        wanted = f"a number {'above' if self.above else 'of at least'} {self.least:g}"
        if self.most < math.inf:
            wanted += f" and at most {self.most:g}"
        return wanted + (", or inf" if self.infinite else "")


@dataclass(frozen=True)
class Bytes:
    """A number of bytes, such as 1073741824, 10GiB or 2.5GB."""

    metavar: str = "BYTES"

    def read(self, value: Any) -> int:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value).strip())
        if isinstance(value, bool) or not match or match[2] not in _UNITS:
            raise ValueError(f"{_short(value)} is not a size: use bytes or a unit such as MiB, GiB, GB")
        num_bytes = float(match[1]) * _UNITS[match[2]]
        if num_bytes > _MOST_BYTES:
            raise ValueError(f"expected at most {_MOST_BYTES >> 40} TiB, got {_short(value)}")
        return round(num_bytes)


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "{" + ",".join(self.choices) + "}"

    def read(self, value: Any) -> str:
        if value not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}, got {_short(value)}")
        return str(value)


@dataclass(frozen=True)
class Text:
    """Any text."""

    metavar: str = "NAME"

    def read(self, value: Any) -> str:
        if isinstance(value, bool | list | tuple | dict):
            raise ValueError(f"expected one text, got {_short(value)}")
        return str(value)


@dataclass(frozen=True)
class Texts(Text):
    """One text, or several, which are kept with commas between them."""

    def read(self, value: Any) -> str:
        return ",".join(map(super().read, value)) if isinstance(value, list | tuple) else super().read(value)


@dataclass(frozen=True)
class JsonObject:
    """A JSON object, as text or as a mapping; kept as text."""

    metavar: str = "JSON"

    def read(self, value: Any) -> str:
        if isinstance(value, dict):
            return json.dumps(value)
        try:
            is_object = isinstance(json.loads(value), dict)
        except (TypeError, ValueError):
            is_object = False
        if not is_object:
            raise ValueError(f"expected a JSON object, got {value!r}")
        return str(value)


@dataclass(frozen=True)
class File:
    """The path of a file or folder."""

    metavar: str = "FILE"

    def read(self, value: Any) -> Path:
        if not isinstance(value, str | Path):
            raise ValueError(f"expected a path, got {_short(value)}")
        return Path(value)


@dataclass(frozen=True)
class Switch:
    """True or false: ``--x`` and ``--no-x``, or ``--x`` alone where nothing else could switch it on."""

    metavar: str = ""
    has_off: bool = True
    """Whether there is ``--no-x``."""

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {_short(value)}")
        return value


@dataclass(frozen=True)
class Several:
    """Values of one kind: as text with commas, or as a list."""

    each: Kind
    many_words: bool = False
    """Whether a command line may also give them as several words."""

    @property
    def metavar(self) -> str:
        return self.each.metavar

    def read(self, value: Any) -> tuple[Any, ...]:
        values: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
        parts = (part for each in values for part in (each.split(",") if isinstance(each, str) else (each,)))
        return tuple(dict.fromkeys(self.each.read(_stripped(part)) for part in parts))


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _as(kind: type[int] | type[float], value: Any) -> Any:
    """``value`` as a number; None if it is none. A float that is whole is no whole number: 16.0 is a slip."""
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        return None
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _short(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= 42 else text[:38] + "...'"
