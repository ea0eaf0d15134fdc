"""From the options in a run's configuration back to a command line."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from experiments import replay
from experiments.parser import CommandParser


def replay_command(options: dict[str, Any]) -> str:
    """The shortest ``kvtwin replay`` that has these ``options``, ready for a shell."""
    parser = CommandParser()
    replay.add_arguments(parser)
    words = ["kvtwin", "replay", str(options["trace"])]
    for action in parser._actions:  # argparse has no public list of them
        value = options.get(action.dest, action.default)
        if action.option_strings and str(value) != str(action.default):
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
