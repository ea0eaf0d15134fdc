"""What a command found that keeps no run: ``curve``, ``limit`` and ``isolation`` write it to ``--out DIR``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvtwin.experiments.display.tables import Part, as_text, show
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.records.folder import write_run_folder

NAME = "result.json"


@dataclass(frozen=True)
class Result:
    """A result, and how it came about."""

    command: str
    """The name of the command."""
    command_line: str
    """What leads to the result again."""
    facts: dict[str, Any]
    """What it prints with ``--json``."""
    text: str
    """What it prints without."""
    kvtwin_version: str


def print_and_keep(command: str, options: Any, facts: dict[str, Any], parts: Sequence[Part]) -> None:
    """Print a result as the ``options`` ask for, and write it to ``--out``, if there is one, even if printing fails.

    ``parts`` are the ``facts`` in words. UserError: the folder cannot be written.
    """
    try:
        if options.json:
            print(json.dumps(facts, indent=2, allow_nan=False))
        else:
            show(*parts)
    finally:
        if options.out:
            line = command_line(command, options)
            result = Result(command, line, facts, as_text(*parts), kvtwin_version())
            content = json.dumps(asdict(result), indent=2, allow_nan=False) + "\n"
            write_run_folder(options.out, {NAME: content.encode()})


def read_result(folder: Path) -> Result:
    """What ``folder`` keeps. UserError, naming the file: it is no result."""
    path = folder / NAME
    try:
        data = json.loads(path.read_bytes())
        return Result(**data)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not the result of a command: {error}") from None
