"""The compile check: the project's kernels pass it, and kernels that must not pass do not."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,  # minutes of compiling
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: pip install 'kvtwin[gpu]'"),
]

REPOSITORY = Path(__file__).parents[2]


def run_module(module: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which compiles for real: nothing is in Triton's cache."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "llama-3.1-8b", "smollm2-135m", "--dtype", "bfloat16", "--block-size", "16"),
        ("--model", "llama-3.2-1b", "--dtype", "float16", "--block-size", "64"),
        ("--model", "llama-2-7b", "--dtype", "bfloat16", "--block-size", "32"),
        ("--model", "tiny", "--dtype", "float32", "--block-size", "16"),
    ],
    ids=lambda options: options[1],
)
def test_the_projects_kernels_are_as_they_must_be(options, tmp_path):
    done = run_module("kvtwin.gpu.compile_check", *options, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    assert {(row[0], row[1]) for row in rows[2:]} >= {
        (kernel, arch) for kernel in ("write", "decode", "join", "prefill", "copy") for arch in ("80", "90")
    }
    assert {row[-1] for row in rows[2:]} == {"ok"}


def test_kernels_can_be_compiled_before_a_gpu_needs_them(tmp_path):
    done = run_module("tests.gpu.warm_up", "90", cache=tmp_path)
    assert done.returncode == 0, done.stderr
    number, rest = done.stdout.split(" ", 1)
    assert rest == "kernels compiled for sm_90\n"
    assert int(number) >= len(list(tmp_path.rglob("*.cubin"))) > 30


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    done = run_module("tests.gpu.sample_kernels", cache=tmp_path_factory.mktemp("triton"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("arch", ["80", "90"])
@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("lost alignment", ["0 LDGSTS.128", "loads of 16 bits"]),
        ("spilled", ["bytes of stack"]),
        ("crowded", ["1 programs fit on a multiprocessor, not 2"]),
        ("too large", ["bytes of shared memory, at most"]),
        ("compiled again", ["compiled 2 times"]),
    ],
)
def test_a_bad_kernel_is_seen(samples, sample, words, arch):
    found = "; ".join(samples["broken"][sample][arch])
    assert all(word in found for word in words), found


def test_a_sound_kernel_passes_and_the_command_fails_for_a_bad_one(samples):
    assert samples["broken"]["sound"] == {"80": [], "90": []}
    assert samples["status"] == 1
