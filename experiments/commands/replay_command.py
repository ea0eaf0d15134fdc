"""From the options in a run's configuration back to a command line."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from kvtwin.experiments.commands import replay, validate
from kvtwin.experiments.options.parser import CommandParser

_COMMANDS = {"replay": replay, "validate": validate}


def replay_command(options: dict[str, Any], command: str = "replay") -> str:
    """The shortest ``kvtwin replay``, or validate, that has these ``options``, ready for a shell."""
    parser = CommandParser()
    _COMMANDS[command].add_arguments(parser)
    words = ["kvtwin", command, str(options["trace"])]
    actions = {action.dest: action for action in parser._actions if action.option_strings}  # no public list of them
    for name, action in actions.items():
        value = options.get(name, action.default)
        if str(value) != str(action.default):
            words += _words(action, value)
    return shlex.join(words)


def _words(action: argparse.Action, value: Any) -> list[str]:
    if isinstance(action, argparse.BooleanOptionalAction):
        return [next(flag for flag in action.option_strings if flag.startswith("--no-") != value)]
    flag = action.option_strings[0]
    if action.nargs == 0:
        return [flag]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]
