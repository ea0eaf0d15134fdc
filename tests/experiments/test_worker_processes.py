"""Pools whose workers end while they write an answer: nobody waits for the rest of it."""

import subprocess
import sys

import pytest

POOL = """
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool

from kvtwin.experiments.sweeps.executors import local_processes

if __name__ == "__main__":
    pool = local_processes(2, 2)()
    answers = [pool.submit(bytes, 40_000_000) for _ in range(40)]  # nearly all of the time is spent in the pipe
    answers[0].result()
    {end}
    print("ended", flush=True)
"""

SHUT_DOWN = "pool.shutdown(wait=False)"
ONE_KILLED = """
    next(iter(pool._processes.values())).kill()
    wait(answers)
    assert isinstance(answers[-1].exception(), BrokenProcessPool)
    pool.shutdown(wait=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [SHUT_DOWN, ONE_KILLED], ids=["shut_down", "one_killed"])
def test_an_answer_that_is_cut_off_holds_up_nobody(tmp_path, end):
    script = tmp_path / "pool.py"
    script.write_text(POOL.format(end=end.strip()))
    for _ in range(2):
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
