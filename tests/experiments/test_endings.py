"""Commands that are ended from outside: what stays of their results, and of their processes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from kvtwin.experiments.command_line import main
from kvtwin.experiments.files.ending import Ended, ended_by

SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT)
NUM_POINTS = 12

linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="finds processes in /proc")


@pytest.fixture
def sweep(tmp_path):
    """Start a sweep of many short points, in a session of its own, or go on with it."""
    axes = {"num-gpu-blocks-override": [600 + 40 * index for index in range(NUM_POINTS)]}
    options = {"gpu": "rtx-4090", "max-model-len": 4096, "num-prompts": 150}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"trace": "demo", "axes": axes, "options": options}))

    def start(*more):
        command = [sys.executable, "-m", "kvtwin.experiments.command_line", "sweep", str(tmp_path / "spec.yaml")]
        return subprocess.Popen(
            [*command, "--workers", "2", "--out", str(tmp_path / "out"), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def processes_of(session):
    """Ids of the processes in a session that still run; a parent may not have asked yet how those ended that do not."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, _, of = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(name))
    return found


def finished(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("points/0*")}


class ForkedCommand:
    """The command in a process of its own, which has imported everything already: a start costs next to nothing."""

    def __init__(self, words, errors):
        self.errors = errors
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        try:  # in a session of its own, as a shell's job is in a process group
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # instead of pytest's
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = main(words)
            sys.stderr.flush()
        except KeyboardInterrupt:  # before the command could listen, or after: Python ends so then
            code = 128 + signal.SIGINT
        except BaseException:
            code = 99
        os._exit(code)

    def has_ended(self):
        """Whether it ended by itself; then there is nothing to kill."""
        pid, self.status = os.waitpid(self.pid, os.WNOHANG)
        return pid != 0

    def end(self, number=None):
        """Send a signal, if there is a number, and wait; the exit code."""
        if number:
            os.kill(self.pid, number)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def wait_for_none_left(session):
    deadline = time.monotonic() + 10
    while left := processes_of(session):
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(0.05)


@linux
@pytest.mark.slow
def test_fifty_kills_at_random_moments_leave_no_process_and_lose_no_point(tmp_path):
    """A fifth of them when points are being finished, the others while the sweep and its workers start."""
    rng = random.Random(1)
    axes = {"num-gpu-blocks-override": [600 + 40 * index for index in range(NUM_POINTS)]}
    options = {"gpu": "rtx-4090", "max-model-len": 4096, "num-prompts": 40}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({"trace": "demo", "axes": axes, "options": options}))
    out, before, num_kills, num_rounds = tmp_path / "out", {}, 0, 0

    def start(number):
        resume = ["--resume"] if (out / "sweep.yaml").exists() else []
        words = ["sweep", str(tmp_path / "spec.yaml"), "--workers", str(number), "--out", str(out), *resume]
        return ForkedCommand(words, tmp_path / "errors")

    while num_kills < 50:
        command = start(1 + num_kills % 2)
        ended = False
        if num_kills % 5 == 0:
            while not ended and len(finished(out)) == len(before):
                time.sleep(0.05)
                ended = command.has_ended()
            time.sleep(rng.uniform(0, 0.2))
        else:
            time.sleep(rng.uniform(0, 0.6))
        if not ended and not command.has_ended():
            number = rng.choice(SIGNALS)
            code = command.end(number)
            errors = command.errors.read_text()
            assert code in (-number, 128 + number), (number, code, errors)  # the first before the command could listen
            assert "Traceback" not in errors or code == -number, errors
            num_kills += 1
        wait_for_none_left(command.pid)
        now = finished(out)
        assert before.items() <= now.items()
        assert all((out / "points" / name / "steps.parquet").exists() for name in now)
        if len(now) == NUM_POINTS:
            num_rounds += 1
            out.rename(tmp_path / f"out-{num_rounds}")
            now = {}
        before = now
    command = start(2)
    assert command.end() == 0, command.errors.read_text()
    assert before.items() <= finished(out).items()
    assert len(finished(out)) == NUM_POINTS


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_workers_end_with_their_parent(sweep, tmp_path, number):
    process = sweep()
    while not finished(tmp_path / "out"):
        assert process.poll() is None
        time.sleep(0.02)
    assert len(processes_of(process.pid)) >= 3
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert out == ""
    assert err.endswith(f" of 12 points in {tmp_path / 'out'}; go on with --resume\n") or number == signal.SIGKILL
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while processes_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not (tmp_path / "out" / "results.parquet").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_each_signal_has_its_exit_code(monkeypatch, capsys, number, code):
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("kvtwin.experiments.command_line.dispatch.run_words", lambda _: signal.raise_signal(number))
    before = [signal.getsignal(each) for each in SIGNALS]
    assert main(["gpus"]) == code
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert capsys.readouterr().err == "kvtwin: interrupted\n"
    signal.signal(signal.SIGINT, usual)


def test_an_ending_is_copied_as_errors_are():
    ended = Ended(signal.SIGTERM, "the end")
    copy = type(ended)(*ended.args)
    assert (copy.number, str(copy), ended_by(copy)) == (signal.SIGTERM, "the end", 15)
    assert ended_by(KeyboardInterrupt()) == signal.SIGINT


def test_what_is_ignored_stays_ignored(monkeypatch):
    """As under ``nohup``."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(
        "kvtwin.experiments.command_line.dispatch.run_words", lambda _: signal.raise_signal(signal.SIGHUP) or 0
    )
    assert main(["gpus"]) == 0
    signal.signal(signal.SIGHUP, usual)
