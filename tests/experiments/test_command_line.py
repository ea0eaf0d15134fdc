"""The command as a whole: help, speed, output that nobody reads, interruption."""

import os
import signal
import subprocess
import sys
from importlib import import_module

import pytest

from kvtwin.experiments.commands.registry import COMMANDS
from kvtwin.experiments.options.fields import fields_of
from tests.experiments.conftest import SMALL_SERVER, mooncake_row

HEAVY = ("numpy", "pandas", "pyarrow", "simpy", "yaml", "tqdm", "torch", "jinja2", "plotly", "scipy")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from kvtwin.experiments.command_line import main; main(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(kvtwin, words):
    outcome = kvtwin(*words)
    assert outcome.code == 0
    assert all(f" {name} " in outcome.out for name in COMMANDS)
    assert "vLLM 0.33.0" in " ".join(outcome.out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_an_example_and_the_version(kvtwin, name):
    outcome = kvtwin(*name.split(), "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"usage: kvtwin {name}")
    assert "example" in outcome.out
    assert f"  kvtwin {name}" in outcome.out
    assert "vLLM 0.33.0" in " ".join(outcome.out.split()), "at any width of the terminal"
    assert max(map(len, outcome.out.splitlines())) <= 150


def test_help_shows_defaults_in_groups(kvtwin):
    text = " ".join(kvtwin("replay", "--help").out.replace("│", " ").split())
    for group in ("Trace format ", "Model, GPU and cache size", "Scheduling and prefix caching", "Load (as in"):
        assert group in text
    for flag, default in [
        ("--block-size TOKENS", "(default: 16)"),
        ("--gpu-memory-utilization SHARE", "(default: 0.92)"),
        ("--enable-prefix-caching, --no-enable-prefix-caching", "(default: on; off without attention)"),
        ("--scheduling-policy {fcfs,priority}", "(default: fcfs)"),
        ("--long-prefill-token-threshold TOKENS", "(default: 0)"),
        ("--gpu NAME", "(default: h200)"),
    ]:
        assert default in text[text.index(flag) :][:250], flag
    assert "(default: )" not in text
    assert "(default: None)" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    module = import_module(f"kvtwin.experiments.commands.{COMMANDS[name].module}")
    assert [field.flag for field in fields_of(module.OPTIONS) if not field.help] == []


def test_group_of_commands(kvtwin):
    outcome = kvtwin("trace")
    assert outcome.code == 0
    assert "trace inspect" in outcome.out
    assert "kvtwin replay  " not in outcome.out


def test_version_names_vllms(kvtwin):
    assert "models vLLM 0.33.0" in kvtwin("--version").out


@pytest.mark.parametrize("words", [["--help"], ["replay", "--help"], ["models"]])
def test_a_reader_that_goes_away(script, words):
    """`kvtwin ... | head -1`."""
    read, write = os.pipe()
    os.close(read)
    process = script(*words, stdout=write)
    os.close(write)
    assert process.communicate()[1] == ""
    assert process.returncode in (0, 1)  # argparse takes no notice


def test_a_full_disk_behind_the_output(script):
    with open("/dev/full", "w") as full:
        process = script("gpus", stdout=full)
        err = process.communicate()[1]
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert "No space left" in err


def test_closed_streams(script):
    assert script("gpus", stdout=None, preexec_fn=lambda: os.close(1)).wait() == 0
    process = script("repaly", stderr=None, preexec_fn=lambda: os.close(2))
    assert process.communicate()[0] == ""
    assert process.returncode == 2


def test_file_names_that_are_no_text(script, mooncake, tmp_path):
    path = os.fsencode(mooncake(2)).replace(b"trace.jsonl", b"tr\xffce.jsonl")
    os.rename(tmp_path / "trace.jsonl", path)
    out, err = script("replay", os.fsdecode(path), *SMALL_SERVER, "--out", tmp_path / "r\udcffn").communicate()
    assert err == ""
    assert "\\udcff" in out
    assert os.path.exists(os.fsencode(tmp_path) + b"/r\xffn/steps.parquet")


@pytest.fixture
def long_replay(script, write, tmp_path, monkeypatch):
    """Start a replay of some minutes, with a folder to write, and wait until it is under way."""
    monkeypatch.setenv("KVTWIN_INTERPRETED", "1")
    rows = (mooncake_row(index, input_length=10, hash_ids=[index], output_length=4000) for index in range(2000))
    process = script(
        *("replay", write(*rows), "--gpu", "a100-40gb", "--max-model-len", "8192", "--out", tmp_path / "run"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells start background jobs that ignore it
    )
    first = process.stderr.readline()  # progress
    yield process, first
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_replay_leaves_nothing(long_replay, tmp_path, number):
    process, first = long_replay
    assert "replay" in first
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert out == ""
    assert "Traceback" not in err
    assert (number == signal.SIGKILL) or err.endswith("kvtwin: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
