"""``gpu/check.sh`` and what it runs: on a CPU, as a dry run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvtwin.gpu.benchmark.peers import peers_of
from kvtwin.gpu.benchmark.problem import BLOCK_SIZE, Shape, make_problem, ragged_lengths
from kvtwin.gpu.benchmark.results import Results
from kvtwin.gpu.benchmark.table import main as print_table
from kvtwin.gpu.layer_ops import TorchLayerOps
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.layer_op_cases import check_norm
from tests.gpu.on_device import FIRST_CASES, MovedOps, attention_excess, layer_op_excess, moved

REPOSITORY = Path(__file__).parents[2]
CPU = torch.device("cpu")
PHASES = ("ceilings", "correctness", "attention", "calibrate", "validate-small", "validate-large")

BARE = """\
import importlib.metadata, sys

installed = importlib.metadata.version

def version(name):
    if name == "kvtwin":
        raise importlib.metadata.PackageNotFoundError(name)
    return installed(name)

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("plotly", "cbor2", "safetensors", "gguf", "transformers", "distributed", "pytest"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

importlib.metadata.version = version
sys.meta_path.insert(0, Missing())
"""
"""Python that knows of no installed kvtwin, and has few of its dependencies."""


def run_check(tmp_path, *options, **environment):
    (tmp_path / "bare").mkdir(exist_ok=True)
    (tmp_path / "bare/sitecustomize.py").write_text(BARE)
    command = ["bash", str(REPOSITORY / "gpu/check.sh"), "--out", str(tmp_path / "out"), *options]
    settings = {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path / "bare"), **environment}
    return subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("lost", ["nothing", "a text"])
def test_an_archive_without_links_is_mended(tmp_path, lost):
    copy = tmp_path / "kvtwin-0.1.0"
    for name in ("kvtwin", "engine", "workloads", "sim", "gpu", "experiments"):
        (copy / name).mkdir(parents=True)
        shutil.copy(REPOSITORY / name / "__init__.py", copy / name)
    shutil.copy(REPOSITORY / "gpu/check.sh", copy / "gpu")
    if lost == "a text":
        (copy / "kvtwin/engine").write_text("../engine")
    command = ["bash", str(copy / "gpu/check.sh"), "--device", "cpu", "--out", str(tmp_path / "out")]
    subprocess.run(command, env={**os.environ, "PYTHON": "true"}, check=True, capture_output=True)
    code = "import kvtwin.engine, kvtwin.gpu, kvtwin.experiments.errors"
    (copy / "experiments/errors.py").touch()
    subprocess.run([sys.executable, "-c", code], cwd=copy, env={"PYTHONPATH": str(copy)}, check=True)


@pytest.mark.slow
def test_a_dry_run_does_everything_and_claims_nothing(tmp_path):
    done = run_check(tmp_path, "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("== results of a dry run")[2].splitlines()
    assert [line.split()[:2] for line in table if line.endswith(" s")] == [[phase, "done"] for phase in PHASES]
    kept = Results(tmp_path / "out/results.jsonl").read()
    assert {row["phase"] for row in kept} == {"ceilings", "correctness", "attention", "phases"}
    assert not any(word in done.stdout for word in ("gb_per_s", "tflop_per_s", "of_copy", "of_read", "of_multiply"))
    for phase in PHASES[4:]:
        lines = [line for line in table if line.startswith(phase)]
        assert any("passed: the same decisions and the same tokens" in line for line in lines)
        rows = [line.split()[1:3] for line in lines]
        counts = {name: count for name, count in rows if name in ("Evictions:", "Preemptions:")}
        assert len(counts) == 2
        assert "0" not in counts.values()
    assert all((tmp_path / "out" / f"{phase}.txt").stat().st_size for phase in PHASES)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_phase_says_so(tmp_path):
    done = run_check(tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("finds no GPU") >= len(PHASES)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.count("failed (2)") == len(PHASES)


def test_a_phase_that_is_cut_off_is_told_and_the_next_one_begins(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *benchmark.table*) exec {sys.executable} "$@" ;; esac\necho began\nexit 124\n'
    )
    python.chmod(0o755)
    done = run_check(tmp_path, PYTHON=str(python))
    assert done.returncode == 1
    assert done.stdout.count("began") == done.stdout.count("cut off") == len(PHASES)


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--speed", "9"], ["--device"]], ids=" ".join)
def test_bad_options_are_one_line(tmp_path, options):
    done = run_check(tmp_path, *options)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_what_was_there_is_not_mixed_with_what_comes(tmp_path):
    (tmp_path / "out").mkdir()
    done = run_check(tmp_path, "--device", "cpu")
    assert done.returncode == 2
    assert "already exists" in done.stderr


def test_the_table_holds_figures_against_goals(tmp_path, capsys, monkeypatch):
    results = Results(tmp_path / "results.jsonl")
    for case, figures in {
        "decode 64 x 8k | kvtwin": {"of_copy": 0.91},
        "decode 16 x 4k | kvtwin": {"of_copy": 0.79},
        "decode 1 x 8k | kvtwin": {"us": 11.9},
        "prefill 8k | kvtwin": {"of_multiply": 0.55},
        "prefill 8k | SDPA, contiguous": {"of_multiply": 0.75},
    }.items():
        results.add("attention", case, **figures)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["table", str(tmp_path)])
    print_table()
    lines = capsys.readouterr().out.splitlines()
    verdicts = ["stretch goal reached" if "stretch goal" in line else line for line in lines if "|" in line]
    assert "91.0%  goal reached (at least 90.0%, stretch 95.0%)" in verdicts[0]
    assert "missed" in verdicts[1]
    assert verdicts[2:4] == ["stretch goal reached"] * 2
    assert "reached" not in verdicts[4]


class Forgetful(TorchAttention):
    """Does not see the last token."""

    def attend(self, query, layer, batch):
        attended = super().attend(query, layer, batch)
        attended[-1] = attended[0]
        return attended


@pytest.mark.parametrize("case", FIRST_CASES, ids=str)
def test_wrong_attention_is_found(case):
    assert attention_excess(case, TorchAttention(), CPU) <= 1
    assert not attention_excess(case, Forgetful(), CPU) <= 1


def test_a_wrong_layer_operation_is_found():
    class Halved(TorchLayerOps):
        def norm(self, values, weight, epsilon):
            return super().norm(values, weight, epsilon) / 2

    assert layer_op_excess(check_norm, MovedOps(TorchLayerOps(), CPU), torch.float32, (3, 64)) == 0
    assert layer_op_excess(check_norm, MovedOps(Halved(), CPU), torch.float32, (3, 64)) == float("inf")


def test_a_moved_slice_keeps_its_strides():
    part = torch.arange(60.0).view(3, 4, 5)[:, 1:3, ::2]
    there = moved(part, CPU)
    assert there.stride() == part.stride()
    assert torch.equal(there, part)


def test_a_problem_names_every_block_once_and_counts_what_it_costs():
    problem = make_problem("some", [1, 1, 6], [40, 3, 20], shape=Shape(4, 2, 8), dtype=torch.float32, device=CPU)
    used = [
        row[: -(-context // BLOCK_SIZE)].tolist()
        for row, context in zip(problem.batch.block_tables, problem.context_tokens, strict=True)
    ]
    blocks = [block for row in used for block in row]
    assert sorted(blocks) == list(range(1, 1 + len(blocks)))
    assert blocks != sorted(blocks)
    assert problem.kv_bytes == 2 * 63 * 2 * 8 * 4
    pairs = 40 + 3 + sum(range(15, 21))
    assert problem.flop == 2 * 2 * 4 * 8 * pairs


def test_ragged_lengths_add_up():
    lengths = ragged_lengths(64, 128, 16384, 64 * 8192)
    assert sum(lengths) == 64 * 8192
    assert all(128 <= length <= 16384 for length in lengths)
    assert max(lengths) > 3 * min(lengths)


def test_a_file_can_bring_more_peers(tmp_path):
    path = tmp_path / "more.py"
    path.write_text("PEERS = {'mine': lambda problem: []}\n")
    assert list(peers_of(path))[-1] == "mine"
    assert list(peers_of(None)) == list(peers_of(path))[:-1]
