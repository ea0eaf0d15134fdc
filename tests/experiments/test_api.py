"""kvtwin from Python: what it returns is what the commands print, its errors are their lines, its documents run."""

import doctest
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

import kvtwin as kv
from kvtwin.experiments.options.load import LoadOptions
from kvtwin.experiments.options.validate import ELSEWHERE
from tests.experiments.conftest import SMALL_SERVER, mooncake_row, tokens
from tests.parts import slow_but

ROOT = Path(__file__).parents[2]
SERVER = {"num_gpu_blocks_override": 2000, "max_model_len": 4096, "step_time": "zero"}


def printed(outcome):
    """What a command printed with ``--json``, without what differs from one time to the next."""
    assert outcome.code == 0, outcome
    data = json.loads(outcome.out)
    if isinstance(data, dict):
        data.pop("date", None)
    return data


def as_printed(data):
    return json.loads(json.dumps(data, allow_nan=False))


def python(code, **settings):
    """Run a script in a process of its own; what it prints."""
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, cwd=ROOT, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("document", slow_but(["README.md"], ["README.md", "docs/python.md"]))
def test_the_documents_run_as_written(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.testfile(str(ROOT / document), module_relative=False, optionflags=options)
    assert result.attempted >= 5
    assert result.failed == 0


def test_importing_it_imports_nothing_large():
    heavy = ("numpy", "pandas", "matplotlib", "yaml", "simpy", "typer", "kvtwin.engine", "kvtwin.experiments")
    code = f"import sys, kvtwin; dir(kvtwin); print([name for name in {heavy!r} if name in sys.modules])"
    assert python(["-c", code]) == "[]\n"


def test_every_name_is_there():
    assert set(kv.__all__) <= set(dir(kv))
    for name in kv.__all__:
        assert getattr(kv, name).__name__ == name
        assert getattr(kv, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kv.nothing  # noqa: B018


def test_type_checkers_see_every_name():
    source = (ROOT / "kvtwin" / "__init__.py").read_text()
    for name in kv.__all__:
        assert f" import {name} as {name}\n" in source


def test_a_replay_is_what_the_command_prints(kvtwin, mooncake):
    trace = mooncake()
    options = {"block_size": 32, "rate_scale": 0.5, "goodput": ["ttft:500", "tpot:50"], "enable_prefix_caching": False}
    words = ["--block-size=32", "--rate-scale=0.5", "--goodput", "ttft:500", "tpot:50", "--no-enable-prefix-caching"]
    run = kv.replay(trace, **SERVER, **options)
    assert as_printed(run.summary) == printed(kvtwin("replay", trace, *SMALL_SERVER, *words, "--json"))
    text = kvtwin("replay", trace, *SMALL_SERVER, *words).out
    assert text.startswith("\n".join(run.heading))
    assert f"completed {run.summary['completed']}" in repr(run)


def test_any_form_of_a_workload_gives_the_same_run(mooncake):
    trace = mooncake()
    of_path = kv.replay(str(trace), **SERVER)
    opened = kv.open_workload(trace)
    for workload in (trace, opened, list(opened), iter(opened)):
        run = kv.replay(workload, **SERVER)
        assert run.summary == of_path.summary
        pd.testing.assert_frame_equal(run.requests, of_path.requests)
        pd.testing.assert_frame_equal(run.steps, of_path.steps)


def test_records_are_copied_and_checked(mooncake):
    records = list(kv.open_workload(mooncake()))
    before = pickle.dumps(records)
    kv.replay(records, **SERVER, rate_scale=2.0)
    assert pickle.dumps(records) == before
    with pytest.raises(kv.WorkloadError, match="record 2: prompt_tokens: expected"):
        kv.replay([records[0], replace(records[1], prompt_tokens=0, hash_ids=None)], **SERVER)
    with pytest.raises(kv.WorkloadError, match="expected at least one request"):
        kv.replay([], **SERVER)


def test_tables_are_those_of_the_kept_run(kvtwin, native, tmp_path):
    trace = native(tokens(*range(40)), tokens(*range(30), session="s"), {"output_tokens": 0})
    kvtwin("replay", trace, *SMALL_SERVER, "--out", tmp_path / "kept")
    run, kept = kv.replay(trace, **SERVER), kv.load_run(tmp_path / "kept")
    assert as_printed(run.summary) == kept.summary
    for name in ("requests", "steps"):
        frame = getattr(run, name)
        pd.testing.assert_frame_equal(frame, pd.read_parquet(tmp_path / "kept" / f"{name}.parquet"))
        pd.testing.assert_frame_equal(frame, getattr(kept, name))
    assert {name: value for name, value in kept.configuration["options"].items() if value is not None}.items() >= {
        "block_size": 16,
        "num_gpu_blocks_override": 2000,
    }.items()


def test_a_saved_run_is_a_kept_one(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    run = kv.replay(trace, **SERVER, out=tmp_path / "kept", events=True)
    run.save(tmp_path / "saved")
    kv.load_run(tmp_path / "kept").save(tmp_path / "again")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {path.name for path in (tmp_path / "kept").iterdir()} - names == {"events.parquet"}
    assert {path.name for path in (tmp_path / "again").iterdir()} == names | {"events.parquet"}
    assert (tmp_path / "saved/requests.parquet").read_bytes() == (tmp_path / "kept/requests.parquet").read_bytes()
    assert kvtwin("compare", tmp_path / "kept", tmp_path / "again").code == 0
    with pytest.raises(kv.UserError, match="already exists"):
        run.save(tmp_path / "saved")


@pytest.mark.parametrize("picture", ["timeline", "latencies", "misses"])
def test_pictures_leave_the_callers_style_alone(mooncake, tmp_path, picture):
    before, backend = dict(mpl.rcParams), mpl.get_backend()
    run = kv.replay(mooncake(), **SERVER)
    run.plot(picture).savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    assert (dict(mpl.rcParams), mpl.get_backend()) == (before, backend)


@pytest.mark.slow
def test_a_sweep_has_the_rows_of_the_command(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    axes = "{block-size: [16, 32], 'max-num-seqs, num-gpu-blocks-override': [[8, 400]]}"
    options = "{max-model-len: 4096, step-time: zero}"
    (tmp_path / "spec.yaml").write_text(f"trace: {trace}\noptions: {options}\naxes: {axes}\n")
    rows = printed(kvtwin("sweep", tmp_path / "spec.yaml", "--workers=1", "--json"))
    axes = {"block_size": range(16, 33, 16), "max_num_seqs, num_gpu_blocks_override": [(8, 400)]}
    server = {"max_model_len": 4096, "step_time": "zero"}
    table = kv.sweep(trace, axes, workers=1, out=tmp_path / "kept", **server)
    assert list(table.columns[:4]) == ["block_size", "max_num_seqs", "num_gpu_blocks_override", "error"]
    assert table.error.isna().all()
    assert len(table) == len(rows) == 2
    for row, (_, mine) in zip(rows, table.iterrows(), strict=True):
        mine = mine.where(mine.notna(), None).to_dict()
        for name, value in row.items():
            assert name == "point" or as_printed(mine[name.replace("-", "_")]) == value, name
    assert kvtwin("plot", tmp_path / "kept").code == 0
    again = kv.sweep(trace, axes, out=tmp_path / "kept", resume=True, **server)
    pd.testing.assert_frame_equal(again, table)


@pytest.mark.slow
def test_points_that_fail_say_why_and_workloads_in_memory_travel(mooncake):
    workload = kv.open_workload(mooncake())
    points = [{"num_gpu_blocks_override": 400}, {"num_gpu_blocks_override": 20}]
    table = kv.sweep(list(workload), points=points, workers=1, max_model_len=4096, step_time="zero")
    assert list(table.num_gpu_blocks_override) == [400, 20]
    assert pd.isna(table.error[0])
    assert "larger than the available KV cache memory" in table.error[1]
    alone = kv.replay(workload, max_model_len=4096, step_time="zero", **points[0])
    assert table.prefix_cache_hits[0] == alone.summary["prefix_cache_hits"]


@pytest.mark.slow
def test_a_trace_may_be_an_axis(mooncake, native):
    traces = [str(mooncake(name="a.jsonl")), str(native(tokens(*range(40)), name="b.jsonl"))]
    table = kv.sweep(axes={"trace": traces}, workers=1, **SERVER)
    assert list(table.trace) == traces
    assert list(table.completed) == [20, 1]
    with pytest.raises(kv.UserError, match="the workload is given as well"):
        kv.sweep(kv.open_workload(traces[0]), {"trace": traces}, **SERVER)


@pytest.mark.slow
def test_workers_do_not_run_the_script_again(mooncake, tmp_path):
    """As a notebook that is run as a script, without a guard around what starts workers."""
    script = tmp_path / "script.py"
    script.write_text(
        "import kvtwin as kv\n"
        "print('once')\n"
        "options = dict(num_gpu_blocks_override=400, max_model_len=4096, step_time='zero', workers=1)\n"
        f"print(len(kv.sweep({str(mooncake())!r}, {{'block_size': [16]}}, **options)))\n"
        "print(__file__ is not None)\n"
    )
    assert python([str(script)]) == "once\n1\nTrue\n"


def test_sizes(kvtwin, native):
    trace = native({}, {"prompt_tokens": 400})
    asked = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100", "max_model_len": 8192, "trace": str(trace)}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    assert as_printed(kv.size(**asked)) == printed(kvtwin("size", *words, "--json"))
    too_long = asked | {"gpu": "l4", "max_model_len": 131072}
    refused = kvtwin("size", *(f"--{name.replace('_', '-')}={value}" for name, value in too_long.items()))
    with pytest.raises(kv.UserError) as caught:
        kv.size(**too_long)
    assert refused.err == f"kvtwin: error: {caught.value}\n"


def test_curves(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    curve = kv.curve(trace, at=[10, 100], block_size=512)
    assert curve.summary == printed(kvtwin("curve", trace, "--at=10,100", "--block-size=512", "--json"))
    assert list(curve.points.blocks) == [10, 100]
    assert curve.marks.empty
    kv.replay(trace, **SERVER | {"num_gpu_blocks_override": 20}, block_size=512).save(tmp_path / "run")
    curve.plot(runs=[tmp_path / "run"]).savefig(tmp_path / "curve.png")
    with pytest.raises(kv.UserError, match="not the folder of a run"):
        curve.plot(runs=[tmp_path])
    marked = kv.curve(kv.open_workload(trace), model="Llama-3.1-8B", gpu="l4,l40s", max_model_len=4096)
    assert list(marked.marks.name) == ["l4 at 0.92", "l40s at 0.92"]


@pytest.mark.slow
def test_limits(kvtwin, mooncake):
    trace = mooncake()
    asked = SERVER | {"num_gpu_blocks_override": 300, "precision": 0.5, "workers": 1}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    found = printed(kvtwin("limit", trace, *words, "--json"))
    assert as_printed(kv.limit(list(kv.open_workload(trace)), **asked)) == found | {"trace": "records"}


def test_what_is_in_a_workload(kvtwin, mooncake):
    trace = mooncake()
    assert as_printed(kv.inspect(trace)) == printed(kvtwin("trace", "inspect", trace, "--json"))
    longer = kv.open_workload(trace, timed_trace_chunk_hash_size=600, format="mooncake")
    assert next(iter(longer)).hash_block_tokens == 600


def test_comparisons(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    runs = [kv.replay(trace, **SERVER, block_size=size) for size in (16, 32)]
    for run, name in zip(runs, "ab", strict=True):
        run.save(tmp_path / name)
    compared = kv.compare(*runs)
    assert list(compared.options.index) == ["block_size"]
    assert compared.options.loc["block_size"].to_dict() == {"run 1": 16, "run 2": 32}
    assert "num_evictions" not in compared.figures.index
    assert list(compared.requests.num_compared) == [20]
    of_folders = kv.compare(tmp_path / "a", tmp_path / "b").summary
    command = printed(kvtwin("compare", tmp_path / "a", tmp_path / "b", "--json"))
    assert as_printed(of_folders) == command | {"runs": [str(tmp_path / "a"), str(tmp_path / "b")]}
    assert as_printed(compared.summary) == command | {"runs": ["run 1", "run 2"]}
    with pytest.raises(kv.UserError, match="at least two runs"):
        kv.compare(runs[0])


def test_options_from_a_file(mooncake, tmp_path):
    (tmp_path / "server.yaml").write_text("block-size: 32\nno-enable-prefix-caching: true\nmax_model_len: 4096\n")
    run = kv.replay(mooncake(), config=tmp_path / "server.yaml", max_model_len=2048)
    asked = run.configuration["options"]
    assert (asked["block_size"], asked["enable_prefix_caching"], asked["max_model_len"]) == (32, False, 2048)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"blok_size": 32}, ["--blok-size=32"]),
        ({"block_size": 0}, ["--block-size=0"]),
        ({"block-size": 0}, ["--block-size=0"]),
        ({"request_rate": 1.0, "rate_scale": 2.0}, ["--request-rate=1", "--rate-scale=2"]),
        ({"goodput": ["ttft"]}, ["--goodput=ttft"]),
        ({"gpu": "h2000", "num_gpu_blocks_override": None}, ["--gpu=h2000"]),
        ({"compilation_config": 3}, ["--compilation-config=3"]),
        ({"events": True}, ["--events"]),
        ({"num_gpu_blocks_override": 4}, ["--num-gpu-blocks-override=4"]),
        ({"warmup_requests": 20}, ["--warmup-requests=20"]),
    ],
    ids=str,
)
def test_mistakes_are_the_commands_lines(kvtwin, mooncake, options, words):
    trace = mooncake()
    with pytest.raises(kv.UserError) as caught:
        kv.replay(trace, **SERVER | options)
    outcome = kvtwin("replay", trace, *SMALL_SERVER, *words)
    outcome.complains()
    assert outcome.err.replace("got '0'", "got 0") == f"kvtwin: error: {caught.value}\n"  # there it was a word


def test_mistakes_of_workloads_are_the_commands_lines(kvtwin, write):
    bad = write(mooncake_row(), mooncake_row(input_length=-1))
    with pytest.raises(kv.WorkloadError) as caught:
        kv.replay(bad, **SERVER)
    assert kvtwin("replay", bad, *SMALL_SERVER).err == f"kvtwin: error: {caught.value}\n"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda trace: kv.replay(5), "expected a workload: a path, demo, a Workload or requests, got 5"),
        (lambda trace: kv.replay(kv.open_workload(trace), format="mooncake"), "the workload is open already"),
        (lambda trace: kv.replay(trace, json=True), "--json: only of the command"),
        (lambda trace: kv.curve(trace, plot="a.png"), "--plot: only of the command"),
        (lambda trace: kv.replay(trace, **SERVER).plot("heatmap"), "expected timeline, latencies or misses"),
        (
            lambda trace: kv.sweep(trace, {"block_size": 16}),
            "axes: block_size: expected a list of values, got 16",
        ),
        (lambda trace: kv.sweep(trace, {"block_size": [16]}, resume=True), "--resume: needs --out"),
        (lambda trace: kv.sweep(trace, {"block_size": [16]}, workers=0), "--workers: expected a whole number"),
        (lambda trace: kv.replay(trace, config=5), "--config: expected a path, got 5"),
        (lambda trace: kv.sweep(trace, {"blok_size": [16]}), "nearest: --block-size"),
        (lambda trace: kv.sweep(f"{trace}x", {"block_size": [16]}), "there is no such file"),
        (lambda trace: kv.sweep(), "trace: expected a workload file"),
        (lambda trace: kv.load_run(trace.parent), "not the folder of a run"),
        (lambda trace: kv.validate(trace, gpu="h100"), f"--gpu: {ELSEWHERE['gpu'][1]}"),
    ],
)
def test_mistakes_that_only_python_can_make(mooncake, call, words):
    with pytest.raises(kv.UserError) as caught:
        call(mooncake())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_validation_passes(mooncake):
    pytest.importorskip("torch")
    options = {"num_prompts": 2, "length_scale": 0.05, "max_model_len": 256, "num_gpu_blocks_override": 60}
    facts = kv.validate(mooncake(), **options, step_time="zero")
    assert all(check["passed"] for check in facts["checks"].values())


def test_defaults_are_the_commands(mooncake):
    asked = kv.replay(mooncake(), **SERVER).configuration["options"]
    assert asked["seed"] == LoadOptions().seed
    assert asked["gpu"] == "h200"


# ---------------------------------------------------------------- results that cannot be kept


@pytest.mark.parametrize("what", ["replay", "sweep"])
def test_a_result_is_returned_where_out_cannot_be_written(monkeypatch, tmp_path, what):
    """A disk that is full in the end: the folder can be made before, and not be filled after."""

    def full(*_):
        raise kv.UserError("--out: No space left on device")

    server = {"gpu": "rtx-4090", "max_model_len": 4096, "num_prompts": 5, "out": tmp_path / "out"}
    if what == "replay":
        monkeypatch.setattr("kvtwin.experiments.runs.kept.write_run_folder", full)
        with pytest.warns(RuntimeWarning, match="No space left on device; the result is returned") as caught:
            assert kv.replay("demo", **server).summary["completed"] == 5
    else:
        monkeypatch.setattr("kvtwin.experiments.sweeps.folder.SweepFolder.keep", full)
        with pytest.warns(RuntimeWarning, match="No space left on device.*; the result is returned") as caught:
            assert kv.sweep("demo", {"block_size": [16]}, workers=1, **server)["completed"].tolist() == [5]
    assert [each.filename for each in caught] == [__file__]
    with pytest.raises(kv.UserError, match="--out"):
        kv.replay("demo", **server | {"out": tmp_path / "nowhere" / "out"})
