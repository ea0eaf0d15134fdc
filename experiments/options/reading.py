"""From values that a user gave to a dataclass of options, and back to the words of a command line."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar

from kvtwin.experiments.errors import UserError, nearest
from kvtwin.experiments.options.fields import OptionField, fields_of
from kvtwin.experiments.options.kinds import Switch
from kvtwin.experiments.options.server import OWNERS, is_foreign

Options = TypeVar("Options")

_ALIKE = 0.75
"""How much alike an unknown option and a known one must be to suggest it."""


def read_options(options: type[Options], values: Mapping[str, Any], command: str) -> Options:
    """The options that ``values`` give, by name or flag; defaults for the rest. None leaves an option out.

    UserError, one line with the flag: unknown (the nearest is named), refused with the reason, or not of its kind.
    ``command`` is what has the options, for the message.
    """
    fields = fields_of(options)
    by_key = {key: field for field in fields for key in _keys_of(field)}
    read: dict[str, Any] = {}
    for key, value in values.items():
        field = by_key.get(option_key(key))
        if field is None:
            raise UserError(unknown_option(options, f"--{option_key(key).replace('_', '-')}", command))
        if value is None and not getattr(field.kind, "or_none", False):
            continue
        try:
            read[field.name] = field.kind.read(value)
        except ValueError as error:
            raise UserError(f"{field.flag}: {error} (see {command} --help)") from None
    for field in fields:
        if field.default is MISSING and field.name not in read:
            raise UserError(f"{field.flag}: is needed (see {command} --help)")
    made = options(**read)
    for field in fields:
        if field.name in read and is_foreign(made, field.name):
            server = getattr(made, "server", "vllm")
            raise UserError(f"{field.flag}: a flag of --server {OWNERS[field.name]}, and the server is {server}")
    return made


def unknown_option(options: type, flag: str, command: str) -> str:
    """What to say of a flag that ``options`` do not have: why it is refused, or what is nearest to it."""
    if reason := refusal(options, flag):
        return f"{flag}: {reason}"
    names = [name for field in shown_fields(options) if not field.is_argument for name in flags_of(field)]
    return f"{flag}: {command} has no such option{nearest(flag, names, _ALIKE)}"


def refusal(options: type, flag: str) -> str | None:
    """Why the command of ``options`` refuses a flag of vLLM, in any of its forms; None if it does not."""
    reasons: Mapping[str, str] = getattr(options, "REFUSED", {})
    return reasons.get(flag) or reasons.get(f"--{flag.removeprefix('--no-')}")


def shown_fields(options: type) -> tuple[OptionField, ...]:
    """Fields without those that the command knows and refuses, by the names in ``HIDDEN``."""
    hidden = getattr(options, "HIDDEN", ())
    return tuple(field for field in fields_of(options) if field.name not in hidden)


def flags_of(field: OptionField) -> tuple[str, ...]:
    """All flags of an option: what sets it, switches it off, and other names of it."""
    return (field.flag, *((field.off_flag,) if field.has_off else ()), *field.aliases)


def option_key(name: str) -> str:
    """An option's name as Python has it, from any spelling: ``--block-size``, ``block-size``, ``block_size``."""
    return str(name).removeprefix("--").replace("-", "_")


def _keys_of(field: OptionField) -> set[str]:
    names = [field.flag, *field.aliases]
    return {field.name, *(option_key(name) for name in names if name.startswith("--"))}


def as_plain(options: Any) -> dict[str, Any]:
    """Every option by name, as YAML and JSON take it, but for those of other servers."""
    fields = fields_of(type(options))
    return {field.name: _plain(getattr(options, field.name)) for field in fields if not is_foreign(options, field.name)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | bool | int | float | None) else str(value)


def command_line(command: str, options: Any, named: Collection[str] = ()) -> str:
    """The shortest command line that has these options, ready for a shell; it names those in ``named`` in any case."""
    return shlex.join(["kvtwin", *command.split(), *command_words(options, named)])


def command_words(options: Any, named: Collection[str] = ()) -> Iterator[str]:
    """The words of the shortest command line that has these options and names those in ``named``."""
    fields = fields_of(type(options))
    for field in fields:
        if field.is_argument and getattr(options, field.name) is not None:
            yield str(getattr(options, field.name))
    for field in fields:
        value = getattr(options, field.name)
        if field.is_argument or (value == field.default and (value is None or field.name not in named)):
            continue
        if isinstance(field.kind, Switch):
            yield field.flag if value else field.off_flag
        else:
            yield f"{field.flag}={','.join(map(_text, value)) if isinstance(value, tuple) else _text(value)}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
