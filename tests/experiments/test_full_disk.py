"""Disks that are full: what was computed is printed all the same, one line says what could not be written.

A limit on the size of any file that the process writes stands for the disk; it spares pipes, which carry the output.
"""

import itertools
import json
import os
import resource
import subprocess
import sys

import pytest
import yaml

from kvtwin.experiments.files.lenient import LenientFile
from tests.experiments.conftest import visible
from tests.parts import slow_but

SERVER = ("--gpu", "rtx-4090", "--max-model-len", "4096", "--num-prompts", "60")


@pytest.fixture
def on_small_disk(tmp_path):
    """Run a command in a folder where no file may be larger than some bytes; returns code, output and errors."""

    def run(most_bytes, *words):
        process = subprocess.run(
            [sys.executable, "-m", "kvtwin.experiments.command_line", *map(str, words)],
            cwd=tmp_path,
            capture_output=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
        )
        return process.returncode, process.stdout.decode(), visible(process.stderr.decode())

    return run


def check_one_line(err, *words):
    assert err.count("\n") == 1, err
    assert err.startswith("kvtwin: error: "), err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "case",
    slow_but(
        [(8_000, ("--events", "--kv-events"))], itertools.product((200, 8_000), ((), ("--events", "--kv-events")))
    ),
)
def test_a_replay_prints_its_figures(on_small_disk, tmp_path, case):
    most_bytes, events = case
    code, out, err = on_small_disk(most_bytes, "replay", "demo", *SERVER, *events, "--json", "--out", "run")
    assert code == 2
    assert json.loads(out)["completed"] == 60
    check_one_line(err, "--out run", "File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_replay_is_kept_without_the_events_that_did_not_fit(on_small_disk, kvtwin, tmp_path):
    code, out, err = on_small_disk(60_000, "replay", "demo", *SERVER, "--events", "--kv-events", "--out", "run")
    assert code == 2
    assert "Hit rate" in out
    check_one_line(err, "--out run: kept without kv_events.jsonl (File too large)")
    names = ["config.yaml", "events.parquet", "machine.json", "requests.parquet", "steps.parquet", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    assert kvtwin("report", tmp_path / "run").code == 0


@pytest.mark.slow
def test_a_sweep_prints_its_table_and_goes_on_where_there_is_room(on_small_disk, kvtwin, tmp_path):
    options = dict(zip(("gpu", "max-model-len", "num-prompts"), SERVER[1::2], strict=True))
    spec = {"trace": "demo", "options": options, "axes": {"block-size": [16, 32]}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    code, out, err = on_small_disk(5_000, "sweep", "spec.yaml", "--json", "--out", "out", "--workers", "1")
    assert code == 2
    assert [row["completed"] for row in json.loads(out)] == [60, 60]
    check_one_line(err, "--out out/points/000", "File too large", "and of 1 more", "--resume")
    assert list((tmp_path / "out" / "points").iterdir()) == []
    assert not (tmp_path / "out" / "results.parquet").exists()
    (tmp_path / "spec.yaml").rename(tmp_path / "again.yaml")
    assert kvtwin("sweep", tmp_path / "again.yaml", "--out", tmp_path / "out", "--resume").code == 0
    assert (tmp_path / "out" / "results.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("curve", "demo", "--plot", "curve.png"), "hit rate"),
        (("trace", "generate", "new.jsonl", "--num-prompts", "50"), ""),
        (("report", "run", "--out", "page.html"), ""),
        (("plot", "run", "--out", "plots"), ""),
        (("export", "run", "--to", "perfetto", "--out", "run.json"), ""),
        (("export", "run", "--to", "prometheus", "--out", "run.prom"), ""),
        (("export", "run", "--to", "vllm-bench", "--out", "bench.json"), ""),
    ],
)
def test_every_file_that_cannot_be_written_is_one_line(on_small_disk, kvtwin, tmp_path, words, printed):
    if "run" in words:
        assert kvtwin("replay", "demo", *SERVER, "--events", "--out", tmp_path / "run").code == 0
    code, out, err = on_small_disk(1_000, *words)
    assert code == 2
    assert printed in out
    check_one_line(err, "File too large")
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"run", "plots"}
    assert "plots" not in names or list((tmp_path / "plots").iterdir()) == []


def test_a_file_that_must_not_fail(tmp_path):
    missing = LenientFile(tmp_path / "nowhere" / "file")
    with missing:
        assert missing.write(b"abc") == 3
        assert missing.tell() == 3
    assert missing.failure == "No such file or directory"
    with LenientFile(tmp_path / "file") as file:
        file.write(b"abc")
    assert (file.failure, file.path.read_bytes()) == (None, b"abc")
    if os.path.exists("/dev/full"):
        full = LenientFile(tmp_path.joinpath("/dev/full"))
        full.write(b"abc")
        full.close()
        assert full.failure == "No space left on device"
