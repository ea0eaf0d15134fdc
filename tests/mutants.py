"""Faults planted in the engine, one at a time: a comparison must find each of them.

`make mutants` (or `python -m tests.mutants [NAME ...]`) changes a copy of the engine's text. Faults of the compiled
loop are for its comparison with the plain scheduler on random cases, those of KV connectors for the small logs of the
real scheduler (tests/parity/golden_connectors). It fails if a fault is not found.
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
        "compiled/loop/queue.py",
        "_insert_behind(loop, request, NOBODY)",
        "_insert_behind(loop, request, loop.numbers[LAST_WAITING])",
    ),
    "later arrivals of a priority go first": Fault(
        "compiled/loop/queue.py", "requests[request, ARRIVAL_NS] < requests", "requests[request, ARRIVAL_NS] > requests"
    ),
    "samples of one arrival go in the order of their numbers": Fault(
        "compiled/loop/queue.py", "requests[request, RANK] < requests", "requests[request, RANK] > requests"
    ),
    "the last token may be hit": Fault(
        "compiled/loop/cache.py", "(row[NUM_TOKENS] - 1) // block_size", "row[NUM_TOKENS] // block_size"
    ),
    "free blocks that are hit count as free": Fault("compiled/loop/cache.py", "num_claimed += 1", "num_claimed += 0"),
    "the watermark holds for nobody": Fault("compiled/loop/cache.py", "if loop.numbers[NUM_RUNNING] > 0 else 0", "* 0"),
    "only the chunk must fit": Fault(
        "compiled/loop/cache.py", "if settings[RESERVES_ALL]:", "if settings[RESERVES_ALL] > 1:"
    ),
    "blocks are freed from the front": Fault(
        "compiled/loop/cache.py",
        "first + row[NUM_BLOCKS] - 1, first - 1, -1)",
        "first, first + row[NUM_BLOCKS], 1)",
    ),
    "a block of unknown tokens is registered": Fault(
        "compiled/loop/end.py",
        "cache.register(loop, request, row[NUM_TOKENS] - 1)",
        "cache.register(loop, request, row[NUM_TOKENS])",
    ),
    "blocks of a decoding request are not registered when they are full": Fault(
        "compiled/loop/end.py",
        "        if was_running:\n            cache.register",
        "        if False:\n            cache.register",
    ),
    "the threshold holds for a request that is alone": Fault(
        "compiled/loop/decide.py", "num_requests > 1", "num_requests > 0"
    ),
    "a step runs ahead of the last token": Fault(
        "compiled/loop/decide.py",
        "if row[NUM_PLACEHOLDERS] and row[NUM_TOKENS] + 1",
        "if row[NUM_PLACEHOLDERS] and row[NUM_TOKENS]",
    ),
    "the request behind a victim is passed over": Fault(
        "compiled/loop/decide.py", "        index -= 1\n", "        index -= 0\n"
    ),
    "the oldest is preempted": Fault("compiled/loop/decide.py", "        return last\n", "        return 0\n"),
    "of equally unimportant ones the oldest is preempted": Fault(
        "compiled/loop/decide.py",
        "requests[request, ARRIVAL_NS] > requests[best, ARRIVAL_NS]",
        "requests[request, ARRIVAL_NS] < requests[best, ARRIVAL_NS]",
    ),
    "recomputed tokens are counted from the start": Fault(
        "compiled/loop/decide.py", "min(end, row[HIGHEST_COMPUTED]) - before", "min(end, row[HIGHEST_COMPUTED])"
    ),
    "prefill is held a step longer": Fault("compiled/loop/decide.py", "= interval - 1", "= interval"),
    "deferred requests are a backlog": Fault(
        "compiled/loop/admit.py",
        "if not loop.requests[request, IS_DEFERRED]",
        "if loop.requests[request, IS_DEFERRED] < 2",
    ),
    "who was passed over comes back in reverse": Fault(
        "compiled/loop/admit.py", "range(num_passed_over - 1, -1, -1)", "range(num_passed_over)"
    ),
    "one adapter more may run": Fault(
        "compiled/loop/loras.py", "loop.numbers[NUM_ACTIVE_LORAS] < loop", "loop.numbers[NUM_ACTIVE_LORAS] <= loop"
    ),
    "an arrival at a step's end is seen a step late": Fault(
        "compiled/loop/run.py", "wake_ns >= until_ns and", "wake_ns > until_ns and"
    ),
    "a preempted request's output is not awaited": Fault(
        "compiled/loop/loras.py", "row[NUM_IN_FLIGHT_SAMPLES] > 0", "row[NUM_IN_FLIGHT_SAMPLES] > 1"
    ),
    "an end-of-sequence token comes one late": Fault(
        "compiled/loop/end.py", "row[NUM_TOKENS] == row[STOP_TOKENS]", "row[NUM_TOKENS] == row[STOP_TOKENS] + 1"
    ),
    "latencies of the warm-up are counted": Fault(
        "compiled/loop/records.py", "elif not row[IS_WARM_UP]:", "elif row[IS_WARM_UP] < 2:"
    ),
}
"""Of the compiled loop, each by what it means. The pool's functions are not among them: both sides call the same, and
`tests/engine/test_block_pool.py` compares them with a model."""

_SCHEDULER = "connectors/connected_scheduler.py"
CONNECTOR_FAULTS = {
    "who waits for a load takes a seat": Fault(
        _SCHEDULER,
        "self._prefilling[request] = None\n        self._pass_over",
        "self._passed_over.append(self.waiting.pop())\n        self.running.append",
    ),
    "loads promise nothing to others": Fault(
        _SCHEDULER, "num_promised_blocks=self._num_promised_blocks()", "num_promised_blocks=0"
    ),
    "chunks promise nothing to loads": Fault(
        _SCHEDULER, "if hit.num_tokens + num_new_tokens < request.num_tokens:", "if False:"
    ),
    "a prompt that was loaded whole computes nothing": Fault(
        _SCHEDULER, "            request.num_computed_tokens -= 1\n", "            request.num_computed_tokens -= 2\n"
    ),
    "loaded blocks cannot be hit": Fault(
        _SCHEDULER, "            self.kv_cache.register(request, request.num_computed_tokens)\n", "            pass\n"
    ),
    "a load can be hit before it is over": Fault(
        "kv_cache_manager.py", "if hit is None or not hit.is_loading:", "if True:"
    ),
    "slots for drafts are loaded too": Fault(
        "kv_cache_manager.py", "0 if hit.is_loading else self._lookahead_slots", "self._lookahead_slots"
    ),
    "ask again means no": Fault(
        _SCHEDULER,
        "                self._pass_over(request, passed_over)\n            elif",
        "                return candidate\n            elif",
    ),
    "kept blocks are freed": Fault(
        _SCHEDULER, "        if self.kept.get(request.request_id) is request:\n            return\n", ""
    ),
    "an aborted load gives its blocks back at once": Fault(
        _SCHEDULER, "request.block_tables) or is_loading:", "request.block_tables):"
    ),
    "blocks of steps in flight are freed at once": Fault(
        _SCHEDULER,
        "        if self._is_in_flight(request):\n            self._freed",
        "        if False:\n            self._freed",
    ),
    "victims in flight are preempted": Fault(_SCHEDULER, "and not self._is_in_flight(victim)", ""),
    "producers wait for steps in flight": Fault(
        _SCHEDULER, "config.async_scheduling and connector.role.loads", "config.async_scheduling"
    ),
    "a bad block is good": Fault(
        "connectors/failed_loads.py", "own[0] * block_size if own", "(own[0] + 1) * block_size if own"
    ),
    "blocks of a failed step keep their keys": Fault(_SCHEDULER, "self.kv_cache.pool.drop_keys(worthless)", "pass"),
    "the output of a failed step is kept": Fault(
        _SCHEDULER, "                request.drop_samples += 1\n", "                pass\n"
    ),
    "external queries count the device's hits": Fault(
        "statistics.py", "num_missed_tokens = num_tokens - num_hit_tokens", "num_missed_tokens = num_tokens"
    ),
    "hashes cover tokens behind their block": Fault(
        _SCHEDULER, "super().__init__(without_lookahead_hashes(config), keys)", "super().__init__(config, keys)"
    ),
}
"""Of KV connectors."""


LOOP_JUDGES = [  # large servers, then all kinds
    ["-m", "tests.sim.compiled_cases", "0", str(NUM_CASES), step] for step in ("8", "1")
]
CONNECTOR_JUDGES = [["-m", "tests.parity", str(REPOSITORY / "tests" / "parity" / "golden_connectors")]]


def is_found(fault, judges=LOOP_JUDGES):
    """Whether one of the commands that compare finds it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "kvtwin").mkdir()
        shutil.copy(REPOSITORY / "kvtwin" / "__init__.py", root / "kvtwin")
        for room in ("workloads", "sim", "gpu", "experiments"):
            (root / "kvtwin" / room).symlink_to(REPOSITORY / room)
        (root / "tests").symlink_to(REPOSITORY / "tests")
        shutil.copytree(REPOSITORY / "engine", root / "kvtwin" / "engine", ignore=shutil.ignore_patterns("__pycache__"))
        path = root / "kvtwin" / "engine" / fault.file
        source = path.read_text("utf-8")
        if source.count(fault.text) != 1:
            raise ValueError(f"{fault.file}: {fault.text!r} is there {source.count(fault.text)} times")
        path.write_text(source.replace(fault.text, fault.instead), "utf-8")
        environment = os.environ | {"KVTWIN_INTERPRETED": "1", "PYTHONPATH": folder, "PYTHONSAFEPATH": "1"}
        for judge in judges:
            command = [sys.executable, *judge]
            try:
                run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
            except subprocess.TimeoutExpired:  # it goes round in circles: nobody can miss that
                return True
            if run.returncode and "differ" not in run.stdout and "Error" not in run.stderr:
                raise RuntimeError(run.stderr)
            if run.returncode:
                return True
        return False


def main(names):
    """Plant the faults called ``names``, or all; 1 if one is not found."""
    judges = dict.fromkeys(FAULTS, LOOP_JUDGES) | dict.fromkeys(CONNECTOR_FAULTS, CONNECTOR_JUDGES)
    missed = []
    for name in names or judges:
        found = is_found((FAULTS | CONNECTOR_FAULTS)[name], judges[name])
        print(f"{'found ' if found else 'MISSED'}  {name}", flush=True)
        missed += [] if found else [name]
    print(f"{len(names or judges) - len(missed)} of {len(names or judges)} faults were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
