"""kvtwin from Python: what a command prints with ``--json``, as plain data."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def kvtwin(*words: object) -> Any:
    """Run ``kvtwin WORDS --json``. ValueError: it was a mistake, told on standard error.

    In a process of its own: a command may start workers, and these would run a notebook's cells anew.
    """
    command = list(map(str, words))
    process = subprocess.run(
        [sys.executable, "-m", "kvtwin.experiments.command_line", *command, "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    if process.returncode not in (0, 1):
        raise ValueError(f"kvtwin {' '.join(command)}: exit code {process.returncode}")
    return json.loads(process.stdout)
