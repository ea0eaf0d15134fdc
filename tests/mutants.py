"""Faults planted in the compiled loop, one at a time: the comparison with the plain scheduler must find each of them.

`make mutants` (or `python -m tests.mutants [NAME ...]`) changes a copy of the loop's text, lets Python interpret it,
and compares random cases until one differs. It fails if a fault is not found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
NUM_CASES = 400


class Fault(NamedTuple):
    """A change of one line."""

    file: str
    text: str
    instead: str


FAULTS = {
    "preempted requests go to the end of the queue": Fault(
        "loop/queue.py",
        "_insert_behind(loop, request, NOBODY)",
        "_insert_behind(loop, request, loop.numbers[LAST_WAITING])",
    ),
    "later arrivals of a priority go first": Fault(
        "loop/queue.py", "requests[request, ARRIVAL_NS] < requests", "requests[request, ARRIVAL_NS] > requests"
    ),
    "samples of one arrival go in the order of their numbers": Fault(
        "loop/queue.py", "requests[request, RANK] < requests", "requests[request, RANK] > requests"
    ),
    "the last token may be hit": Fault(
        "loop/cache.py", "(row[NUM_TOKENS] - 1) // block_size", "row[NUM_TOKENS] // block_size"
    ),
    "free blocks that are hit count as free": Fault("loop/cache.py", "num_claimed += 1", "num_claimed += 0"),
    "the watermark holds for nobody": Fault("loop/cache.py", "if loop.numbers[NUM_RUNNING] > 0 else 0", "* 0"),
    "only the chunk must fit": Fault("loop/cache.py", "if settings[RESERVES_ALL]:", "if settings[RESERVES_ALL] > 1:"),
    "blocks are freed from the front": Fault(
        "loop/cache.py",
        "first + row[NUM_BLOCKS] - 1, first - 1, -1)",
        "first, first + row[NUM_BLOCKS], 1)",
    ),
    "a block of unknown tokens is registered": Fault(
        "loop/end.py",
        "cache.register(loop, request, row[NUM_TOKENS] - 1)",
        "cache.register(loop, request, row[NUM_TOKENS])",
    ),
    "blocks of a decoding request are not registered when they are full": Fault(
        "loop/end.py",
        "        if was_running:\n            cache.register",
        "        if False:\n            cache.register",
    ),
    "the threshold holds for a request that is alone": Fault("loop/decide.py", "num_requests > 1", "num_requests > 0"),
    "a step runs ahead of the last token": Fault(
        "loop/decide.py",
        "if row[NUM_PLACEHOLDERS] and row[NUM_TOKENS] + 1",
        "if row[NUM_PLACEHOLDERS] and row[NUM_TOKENS]",
    ),
    "the request behind a victim is passed over": Fault(
        "loop/decide.py", "        index -= 1\n", "        index -= 0\n"
    ),
    "the oldest is preempted": Fault("loop/decide.py", "        return last\n", "        return 0\n"),
    "of equally unimportant ones the oldest is preempted": Fault(
        "loop/decide.py",
        "requests[request, ARRIVAL_NS] > requests[best, ARRIVAL_NS]",
        "requests[request, ARRIVAL_NS] < requests[best, ARRIVAL_NS]",
    ),
    "recomputed tokens are counted from the start": Fault(
        "loop/decide.py", "min(end, row[HIGHEST_COMPUTED]) - before", "min(end, row[HIGHEST_COMPUTED])"
    ),
    "prefill is held a step longer": Fault("loop/decide.py", "= interval - 1", "= interval"),
    "deferred requests are a backlog": Fault(
        "loop/admit.py", "if not loop.requests[request, IS_DEFERRED]", "if loop.requests[request, IS_DEFERRED] < 2"
    ),
    "who was passed over comes back in reverse": Fault(
        "loop/admit.py", "range(num_passed_over - 1, -1, -1)", "range(num_passed_over)"
    ),
    "one adapter more may run": Fault(
        "loop/loras.py", "loop.numbers[NUM_ACTIVE_LORAS] < loop", "loop.numbers[NUM_ACTIVE_LORAS] <= loop"
    ),
    "an arrival at a step's end is seen a step late": Fault(
        "loop/run.py", "wake_ns >= until_ns and", "wake_ns > until_ns and"
    ),
    "a preempted request's output is not awaited": Fault(
        "loop/loras.py", "row[NUM_IN_FLIGHT_SAMPLES] > 0", "row[NUM_IN_FLIGHT_SAMPLES] > 1"
    ),
    "an end-of-sequence token comes one late": Fault(
        "loop/end.py", "row[NUM_TOKENS] == row[STOP_TOKENS]", "row[NUM_TOKENS] == row[STOP_TOKENS] + 1"
    ),
    "latencies of the warm-up are counted": Fault(
        "loop/records.py", "elif not row[IS_WARM_UP]:", "elif row[IS_WARM_UP] < 2:"
    ),
}
"""Each by what it means. Files are below engine/compiled. The pool's functions are not among them: both sides call the
same, and `tests/engine/test_block_pool.py` compares them with a model."""


def is_found(fault):
    """Whether a comparison of random cases finds it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "kvtwin").mkdir()
        shutil.copy(REPOSITORY / "kvtwin" / "__init__.py", root / "kvtwin")
        for room in ("workloads", "sim", "gpu", "experiments"):
            (root / "kvtwin" / room).symlink_to(REPOSITORY / room)
        (root / "tests").symlink_to(REPOSITORY / "tests")
        shutil.copytree(REPOSITORY / "engine", root / "kvtwin" / "engine", ignore=shutil.ignore_patterns("__pycache__"))
        path = root / "kvtwin" / "engine" / "compiled" / fault.file
        source = path.read_text("utf-8")
        if source.count(fault.text) != 1:
            raise ValueError(f"{fault.file}: {fault.text!r} is there {source.count(fault.text)} times")
        path.write_text(source.replace(fault.text, fault.instead), "utf-8")
        environment = os.environ | {"KVTWIN_INTERPRETED": "1", "PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}
        for step in ("8", "1"):  # large servers, then all kinds
            command = [sys.executable, "-m", "tests.sim.compiled_cases", "0", str(NUM_CASES), step]
            run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
            if run.returncode and "differs" not in run.stdout and "Error" not in run.stderr:
                raise RuntimeError(run.stderr)
            if run.returncode:
                return True
        return False


def main(names):
    """Plant the faults called ``names``, or all; 1 if one is not found."""
    missed = []
    for name in names or FAULTS:
        found = is_found(FAULTS[name])
        print(f"{'found ' if found else 'MISSED'}  {name}", flush=True)
        missed += [] if found else [name]
    print(f"{len(names or FAULTS) - len(missed)} of {len(names or FAULTS)} faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
