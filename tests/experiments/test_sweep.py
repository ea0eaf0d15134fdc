"""``kvtwin sweep``: what is replayed, what is kept, what happens when a point, a worker or the sweep itself dies."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pyarrow.parquet
import pytest
import yaml

from kvtwin.experiments.sweeps.spec import read_sweep_spec

SERVER = {"num-gpu-blocks-override": 400, "max-model-len": 4096, "step-time": "zero"}
GRID = {"block-size": [16, 32], "max-num-seqs": [8, 16, 32]}


@pytest.fixture
def spec(tmp_path):
    """Write a specification; settings go over a small server and a trace."""

    def path(workload, name="spec.yaml", **settings):
        file = tmp_path / name
        file.write_text(yaml.safe_dump({"trace": str(workload), "options": SERVER} | settings, sort_keys=False))
        return file

    return path


def files_in(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "machine.json"
    }


def test_every_combination_is_a_point_and_equals_a_replay(kvtwin, mooncake, spec, summary_of):
    trace = mooncake()
    outcome = kvtwin("sweep", spec(trace, axes=GRID), "--json")
    rows = json.loads(outcome.out)
    assert outcome.code == 0
    assert [(row["block-size"], row["max-num-seqs"]) for row in rows] == [(b, s) for b in (16, 32) for s in (8, 16, 32)]
    for row in rows:
        options = [f"--{name}={value}" for name, value in SERVER.items()]
        options += [f"--{name}={row[name]}" for name in GRID]
        expected = json.loads(kvtwin("replay", trace, *options, "--json").out)
        assert {name: row[name] for name in expected if name != "date"} == {
            name: value for name, value in expected.items() if name != "date"
        }


def test_points_and_paired_axes_and_traces(mooncake, spec):
    traces = [str(mooncake(name=name)) for name in ("a.jsonl", "b.jsonl")]
    path = spec(
        traces[0],
        points=[{}, {"enable-prefix-caching": False}],
        axes={"trace": traces, "block-size, max_num_seqs": [[16, 8], [32, 4]]},
    )
    points = read_sweep_spec(path).points
    assert len(points) == 8
    assert [point.arguments[0] for point in points[:4]] == [traces[0], traces[0], traces[1], traces[1]]
    assert points[5].varied == {
        "enable-prefix-caching": False,
        "trace": traces[0],
        "block-size": 32,
        "max-num-seqs": 4,
    }
    words = ["--no-enable-prefix-caching", "--block-size=32", "--max-num-seqs=4"]
    assert set(words) <= set(points[5].arguments)
    assert "--block-size=16" in points[4].arguments  # the default, named since the specification names it


def test_the_table_shows_options_columns_and_the_description(kvtwin, mooncake, spec):
    outcome = kvtwin(
        "sweep",
        spec(mooncake(), axes={"block-size": [16, 32]}, columns=["completed", "num_preemptions"], description="Why?"),
    )
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[0]) == (0, "Why?")
    assert [line.split() for line in lines[2:]] == [
        ["block-size", "completed", "num_preemptions"],
        ["16", "20", "0"],
        ["32", "20", "0"],
    ]


def test_a_dry_run_prints_commands_that_can_be_run(kvtwin, mooncake, spec):
    outcome = kvtwin("sweep", spec(mooncake(), axes=GRID), "--dry-run")
    commands = outcome.out.splitlines()
    assert (outcome.code, len(commands)) == (0, 6)
    assert kvtwin(*commands[3].split()[1:]).code == 0


@pytest.mark.slow
def test_one_worker_and_many_leave_the_same_bytes(kvtwin, mooncake, spec, tmp_path):
    path = spec(mooncake(), axes=GRID)
    for workers in (1, 3):
        assert kvtwin("sweep", path, "--workers", workers, "--out", tmp_path / f"by-{workers}").code == 0
    one, many = files_in(tmp_path / "by-1"), files_in(tmp_path / "by-3")
    assert one == many
    assert len(one) == 6 * 4 + 2
    table = pyarrow.parquet.read_table(tmp_path / "by-1" / "results.parquet").to_pylist()
    assert [row["max-num-seqs"] for row in table] == [8, 16, 32] * 2
    assert {row["completed"] for row in table} == {20}


def test_a_failed_point_is_recorded_and_the_rest_goes_on(kvtwin, mooncake, spec, tmp_path):
    path = spec(mooncake(), axes={"num-gpu-blocks-override": [400, 20, 300]})
    outcome = kvtwin("sweep", path, "--out", tmp_path / "sweep")
    assert outcome.code == 1
    assert "* point 1 failed: To serve at least one request" in outcome.out
    rows = pyarrow.parquet.read_table(tmp_path / "sweep" / "results.parquet").to_pylist()
    assert [row["completed"] for row in rows] == [20, None, 20]
    assert [bool(row["error"]) for row in rows] == [False, True, False]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"axes": {"block-sise": [16]}}, ["--block-sise", "nearest: --block-size"]),
        ({"axes": {"block-size": 16}}, ["axes: block-size: expected a list"]),
        ({"axes": {"block-size, max-num-seqs": [[16]]}}, ["expected lists of 2 values"]),
        ({"axes": {"block-size": [16], "block_size": [32]}}, ["block-size: named twice"]),
        ({"axes": {"block-size": [16]}, "points": [{"block-size": 32}]}, ["block-size", "also set in points"]),
        ({"axis": {}}, ["axis: unknown key", "nearest: axes"]),
        ({"points": []}, ["points: expected a list"]),
        ({"options": {"out": "x"}}, ["options: out"]),
        ({"options": {"json": True}}, ["options: json"]),
        ({"options": {"block-size": "many"}}, ["--block-size", "whole number"]),
        ({"options": {"speculative-confg": 1}}, ["--speculative-confg"]),
        ({"columns": "completed"}, ["columns: expected a list"]),
        ({"trace": None}, ["trace: expected a workload file"]),
    ],
)
def test_mistakes_in_a_specification(kvtwin, mooncake, spec, settings, words):
    path = spec(mooncake(), **settings)
    kvtwin("sweep", path).complains(str(path), *words)


def test_a_trace_that_is_not_there_is_a_mistake_before_anything_runs(kvtwin, mooncake, spec, tmp_path):
    path = spec(mooncake(), axes={"trace": [str(mooncake()), str(tmp_path / "absent.jsonl")]})
    kvtwin("sweep", path, "--out", tmp_path / "sweep").complains("absent.jsonl: cannot be read")
    assert not (tmp_path / "sweep").exists()


def test_what_is_misspelt_is_found_before_anything_runs(kvtwin, mooncake, spec, tmp_path):
    trace = mooncake()
    path = spec(trace, columns=["completed", "num_preemtions"])
    kvtwin("sweep", path, "--out", tmp_path / "out").complains("columns: num_preemtions", "nearest: num_preemptions")
    (tmp_path / "times.yaml").write_text("model: linear\nbase_mss: 1\n")
    for axes, word in (
        ({"step-time": ["zero", str(tmp_path / "times.yaml")]}, "base_mss"),
        ({"gpu": ["h200", "h2000"]}, "h2000"),
        ({"model": ["tiny", "tinny"]}, "tinny"),
    ):
        kvtwin("sweep", spec(trace, axes=axes), "--out", tmp_path / "out").complains(word)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"kv-cache-metrics": True, "metric-percentiles": "50,90"}])
def test_the_figures_that_a_sweep_may_show_are_those_of_a_replay(kvtwin, spec, summary_of, options):
    words = [
        word for name, value in options.items() for word in (f"--{name}",) + ((value,) if value is not True else ())
    ]
    columns = list(summary_of("demo", *words, "--num-prompts", "20"))
    columns.remove("date")
    path = spec("demo", options={**SERVER, **options, "num-prompts": 20}, columns=columns)
    assert kvtwin("sweep", path).code == 0


@pytest.mark.slow
def test_folders_of_others_are_left_alone(kvtwin, mooncake, spec, tmp_path):
    trace, out = mooncake(), tmp_path / "sweep"
    path = spec(trace, axes={"block-size": [16]})
    kvtwin("sweep", path, "--resume").complains("--resume", "--out")
    out.mkdir()
    kvtwin("sweep", path, "--out", out).complains("already exists", "--resume")
    kvtwin("sweep", path, "--out", out, "--resume").complains("no sweep to resume")
    assert list(out.iterdir()) == []
    out.rmdir()
    assert kvtwin("sweep", path, "--out", out).code == 0
    before = files_in(out)
    other = spec(trace, name="other.yaml", axes={"block-size": [32]})
    kvtwin("sweep", other, "--out", out, "--resume").complains("another sweep")
    assert files_in(out) == before


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_sweep_that_is_killed_loses_no_finished_point(kvtwin, spec, tmp_path):
    """kill -9 in the middle, then --resume: finished points are not run again, and the result is as if undisturbed."""
    path = spec(
        "demo",
        axes={"num-gpu-blocks-override": [600 + 40 * i for i in range(8)]},
        options={"gpu": "rtx-4090", "max-model-len": 4096},
    )
    command = [sys.executable, "-m", "kvtwin.experiments.command_line", "sweep", str(path), "--workers", "1"]
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(lambda: len(list(out.glob("points/*/summary.json"))) >= 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = {folder.name: folder.stat().st_mtime_ns for folder in (out / "points").glob("0*")}
    assert 2 <= len(finished) < 8
    assert not (out / "results.parquet").exists()
    assert kvtwin("sweep", path, "--out", out, "--resume").code == 0
    assert {name: (out / "points" / name).stat().st_mtime_ns for name in finished} == finished
    assert kvtwin("sweep", path, "--out", tmp_path / "whole").code == 0
    assert files_in(out) == files_in(tmp_path / "whole")


def children_of(pid):
    return [int(text) for text in open(f"/proc/{pid}/task/{pid}/children").read().split()]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds worker processes in /proc")
def test_a_local_worker_that_is_killed_is_replaced(spec, tmp_path):
    path = spec(
        "demo",
        axes={"num-gpu-blocks-override": [600 + 40 * i for i in range(6)]},
        options={"gpu": "rtx-4090", "max-model-len": 4096},
    )
    out = tmp_path / "sweep"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvtwin.experiments.command_line",
            "sweep",
            str(path),
            "--workers",
            "1",
            "--out",
            str(out),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: list(out.glob("points/*/summary.json")))
    for pid in children_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    assert process.wait(120) == 0, process.stderr.read()
    assert len(list(out.glob("points/*/summary.json"))) == 6


@contextmanager
def cluster(number):
    """A Dask cluster of worker processes on this machine."""
    distributed = pytest.importorskip("distributed", reason="extra dask")
    with distributed.LocalCluster(
        n_workers=number, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as local:
        yield local


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_bytes_though_a_worker_is_killed(kvtwin, spec, tmp_path):
    path = spec(
        "demo",
        axes={"num-gpu-blocks-override": [600 + 40 * i for i in range(8)]},
        options={"gpu": "rtx-4090", "max-model-len": 4096},
    )
    out = tmp_path / "dask"
    with cluster(2) as local:
        workers = [worker.process.pid for worker in local.workers.values()]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kvtwin.experiments.command_line",
                "sweep",
                str(path),
                "--dask",
                local.scheduler_address,
                "--out",
                str(out),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        wait_for(lambda: list(out.glob("points/*/summary.json")))
        os.kill(workers[0], signal.SIGKILL)
        assert process.wait(120) == 0, process.stderr.read()
    assert kvtwin("sweep", path, "--out", tmp_path / "local").code == 0
    assert files_in(out) == files_in(tmp_path / "local")


@pytest.mark.slow
def test_no_cluster_there(kvtwin, mooncake, spec):
    pytest.importorskip("distributed", reason="extra dask")
    path = spec(mooncake(), axes={"block-size": [16]})
    kvtwin("sweep", path, "--dask", "tcp://127.0.0.1:9").complains("--dask tcp://127.0.0.1:9")
    kvtwin("sweep", path, "--dask", "nonsense://x").complains("--dask nonsense://x")
