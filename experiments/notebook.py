"""kvtwin from Python: what a command prints with ``--json``, as plain data."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

from experiments.command_line import main


def kvtwin(*words: object) -> Any:
    """Run ``kvtwin WORDS --json``. ValueError: it was a mistake, told on standard error."""
    command = list(map(str, words))
    output = io.StringIO()
    with redirect_stdout(output):
        exit_code = main([*command, "--json"])
    if exit_code not in (0, 1):
        raise ValueError(f"kvtwin {' '.join(command)}: exit code {exit_code}")
    return json.loads(output.getvalue())
