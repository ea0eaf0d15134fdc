"""Who replays: each a process of its own, whose processor time and peak memory are measured from outside."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent


class Measured(NamedTuple):
    """What one replay took."""

    facts: dict[str, Any]
    """What the process says of itself: ``simulation_cpu_s``, ``requests``, ``steps``, ..."""
    cpu_s: float
    """Of the whole process, imports and reading included."""
    peak_bytes: int


def run(
    python: Path | str, script: str, *arguments: object, interpreted: bool = False, limit_s: float
) -> Measured | None:
    """The measured process; None if it fails, which is told, or takes more than ``limit_s`` of wall time."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({"KVTWIN_INTERPRETED": "1"} if interpreted else {})
    words = [str(python), str(HERE / script), *map(str, arguments)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        os.set_blocking(process.stdout.fileno(), False)
        os.set_blocking(process.stderr.fileno(), False)
        output, errors, deadline_s = b"", b"", time.monotonic() + limit_s
        ended = 0
        try:
            while not ended:
                output += process.stdout.read() or b""
                errors += process.stderr.read() or b""
                ended, status, usage = os.wait4(process.pid, os.WNOHANG)
                if not ended and time.monotonic() > deadline_s:
                    process.kill()
                time.sleep(0 if ended else 0.02)
        finally:
            if not ended:  # interrupted
                process.kill()
        process.returncode = os.waitstatus_to_exitcode(status)
        output += process.stdout.read() or b""
        errors += process.stderr.read() or b""
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["killed"])[-1]
        print(f"{script} {' '.join(map(str, arguments))}: {last}", file=sys.stderr)
        return None
    facts = json.loads(output.decode().strip().splitlines()[-1])
    return Measured(facts, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
