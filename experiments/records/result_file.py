"""What a command found that keeps no run: ``curve``, ``limit`` and ``isolation`` write it to ``--out DIR``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvtwin.experiments.display.tables import Part, as_text, show
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.records.folder import check_free, write_run_folder

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


Found = tuple[dict[str, Any], Sequence[Part]]
"""The facts of a result, and the same in words."""


def print_and_keep(
    command: str, options: Any, find: Callable[[], Found], draw: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """What ``find`` finds: printed as the ``options`` ask for, written to ``--out`` and given to ``draw``.

    What comes later is done even if what comes before fails. Returns the facts. UserError: the folder is there already,
    which is seen first, or it cannot be written.
    """
    if options.out:
        check_free(options.out)
    facts, parts = find()
    try:
        if options.json:
            print(json.dumps(facts, indent=2, allow_nan=False))
        else:
            show(*parts)
    finally:
        try:
            if options.out:
                line = command_line(command, options)
                result = Result(command, line, facts, as_text(*parts), kvtwin_version())
                content = json.dumps(asdict(result), indent=2, allow_nan=False) + "\n"
                write_run_folder(options.out, {NAME: content.encode()})
        finally:
            draw(facts)
    return facts


def read_result(folder: Path) -> Result:
    """What ``folder`` keeps. UserError, naming the file: it is no result."""
    path = folder / NAME
    try:
        data = json.loads(path.read_bytes())
        return Result(**data)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not the result of a command: {error}") from None
