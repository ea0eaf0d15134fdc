"""Asks SGLang's own RadixCache."""

import json
import os
import subprocess
from pathlib import Path


def ask(cases: list[dict]) -> list[list]:
    """Its answers; the environment names the unpacked wheel and a Python with torch (see real_cache.py)."""
    run = subprocess.run(
        [os.environ["ORACLE_PYTHON"], str(Path(__file__).with_name("real_cache.py"))],
        input="".join(f"{json.dumps(case)}\n" for case in cases),
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    return [json.loads(line) for line in run.stdout.splitlines()]
