"""Runs tests/gpu/interpreter in a process of its own: Triton is imported there to interpret, and here never."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.parts import slow_but


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed: pip install 'kvtwin[gpu]'")
@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed: it exists for Linux only")
@pytest.mark.parametrize("part", slow_but(["not slow"], ["not slow", "slow"]))
def test_kernels_interpreted_on_the_cpu(part):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        part,
        str(Path(__file__).parent / "interpreter"),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
