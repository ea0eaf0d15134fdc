"""The options of a kept run, as its configuration has them."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayCommandOptions, ReplayOptions
from kvtwin.experiments.options.validate import ValidateOptions

_OPTIONS = {"replay": ReplayCommandOptions, "validate": ValidateOptions}


def options_of_run(configuration: dict[str, Any]) -> ReplayOptions:
    """What was asked for. UserError: the configuration is of another version."""
    command = configuration["command"]
    given = {name: value for name, value in configuration["options"].items() if value is not None}
    return read_options(_OPTIONS[command], given, f"kvtwin {command}")
