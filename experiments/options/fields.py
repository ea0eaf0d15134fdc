"""Fields of options: a frozen dataclass per subject, whose fields say what their flag is called, takes and means.

A command's options are one dataclass that inherits from the subjects it needs. Everything else reads the fields: the
command line with its help, YAML files, the Python API, and the configuration that a run keeps.

>>> from dataclasses import dataclass
>>> from kvtwin.experiments.options.kinds import Whole
>>> @dataclass(frozen=True, kw_only=True)
... class BlockOptions:
...     '''Blocks.'''
...     block_size: int = option(16, Whole("TOKENS"), "tokens per block")
>>> [(field.flag, field.default, field.group) for field in fields_of(BlockOptions)]
[('--block-size', 16, 'Blocks')]
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any

from kvtwin.experiments.options.kinds import Kind, Switch

_KEY = "option"
REQUIRED: Any = MISSING
"""The default of what must be given."""


@dataclass(frozen=True)
class _Meaning:
    kind: Kind
    help: str
    aliases: tuple[str, ...]
    flag: str | None
    is_argument: bool


@dataclass(frozen=True)
class OptionField:
    """One option of a command."""

    name: str
    """Of the dataclass's field, and the key in a run's configuration."""
    default: Any
    """MISSING where it must be given."""
    kind: Kind
    help: str
    flag: str
    """With two dashes; of an argument, what stands for it in the usage line."""
    aliases: tuple[str, ...]
    """Other flags of the same meaning."""
    is_argument: bool
    """Whether it is given by its place on the command line."""
    group: str
    """Title of the subject that it belongs to."""

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def has_off(self) -> bool:
        """Whether there is ``--no-...``."""
        return isinstance(self.kind, Switch) and self.kind.has_off

    @property
    def off_flag(self) -> str:
        """What switches it off."""
        return f"--no-{self.flag[2:]}"

    @property
    def default_text(self) -> str:
        """How help shows the default; empty where there is none to tell."""
        if self.default in (MISSING, None, ()) or (self.default is False and not self.has_off):
            return ""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in self.default)
        return str(self.default)


def option(default: Any, kind: Kind, help_text: str, *aliases: str, flag: str | None = None) -> Any:
    """A field that is given as a flag: ``--field-name``, or ``flag``; and as ``aliases``, such as ``-tp``."""
    meaning = _Meaning(kind, help_text, aliases, flag, False)
    return dataclasses.field(default=default, metadata={_KEY: meaning})


def argument(kind: Kind, help_text: str, default: Any = REQUIRED) -> Any:
    """A field that is given by its place on the command line; its kind's metavar stands for it."""
    meaning = _Meaning(kind, help_text, (), None, True)
    return dataclasses.field(default=default, metadata={_KEY: meaning})


def with_default(options: type, name: str, default: Any) -> Any:
    """The field ``name`` of ``options`` again, with another default; it stays in its group."""
    (field,) = [field for field in dataclasses.fields(options) if field.name == name]
    return dataclasses.field(default=default, metadata=field.metadata)


def fields_of(options: type) -> tuple[OptionField, ...]:
    """The options of a dataclass: its own first, then those of each subject in the order of its bases."""
    return _fields_of(options)  # which type checkers call with nothing but a Hashable


@cache
def _fields_of(options: type) -> tuple[OptionField, ...]:
    found = []
    for field in dataclasses.fields(options):
        meaning: _Meaning = field.metadata[_KEY]
        owner = _owner(options, field.name)
        flag = meaning.flag or (meaning.kind.metavar if meaning.is_argument else f"--{field.name.replace('_', '-')}")
        found.append(
            OptionField(
                field.name,
                field.default,
                meaning.kind,
                meaning.help,
                flag,
                meaning.aliases,
                meaning.is_argument,
                (owner.__doc__ or "").partition("\n")[0].removesuffix("."),
            )
        )
    order = [owner.__name__ for owner in options.__mro__]
    found.sort(key=lambda each: order.index(_owner(options, each.name).__name__))
    return tuple(found)


def _owner(options: type, name: str) -> type:
    """The subject that first had the field."""
    return next(base for base in reversed(options.__mro__) if name in getattr(base, "__dataclass_fields__", ()))
