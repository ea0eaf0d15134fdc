"""The ``kvtwin`` command: a thin typer application over the options of each command."""

from kvtwin.experiments.command_line.entry import main

__all__ = ["main"]
