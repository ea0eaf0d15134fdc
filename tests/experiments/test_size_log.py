"""``kvtwin size --log``: a start-up log beside what is predicted for it."""

import json

import pytest

import kvtwin as kv

OLD = """\
INFO 06-10 10:57:39 [config.py:2285] Chunked prefill is enabled with max_num_batched_tokens=2048.
INFO 06-10 10:57:46 [core.py:69] Initializing a V1 LLM engine (v0.9.2) with config: model='Qwen/Qwen3-8B', \
max_seq_len=40960, tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto, \
enable_prefix_caching=True
INFO 06-10 10:57:57 [gpu_model_runner.py:1801] Model loading took 15.2683 GiB and 3.617503 seconds
INFO 06-10 10:58:13 [gpu_worker.py:232] Available KV cache memory: 18.69 GiB
INFO 06-10 10:58:14 [kv_cache_utils.py:716] GPU KV cache size: 136,080 tokens
INFO 06-10 10:58:14 [kv_cache_utils.py:720] Maximum concurrency for 40,960 tokens per request: 3.32x
"""

NEW = """\
(EngineCore pid=326) INFO 10-06 17:00:11 [model_runner.py:407] Model loading took 15.0 GiB memory and 5.42 seconds
(EngineCore pid=326) INFO 10-06 17:00:33 [gpu_worker.py:692] Available KV cache memory: 56.21 GiB
(EngineCore pid=326) INFO 10-06 17:00:33 [kv_cache_utils.py:2464] GPU KV cache size: 460,496 tokens, Maximum \
concurrency for 131,072 tokens per request: 3.51x
(EngineCore pid=326) INFO 10-06 17:00:41 [gpu_worker.py:955] Free memory on device (78.84/79.25 GiB) on startup. \
Desired GPU memory utilization is (0.92, 72.91 GiB). Actual usage is 15.26 GiB for consumed memory (weights + \
non-torch), 1.44 GiB for peak activation, and 0.23 GiB for CUDAGraph memory.
"""


@pytest.fixture
def log(tmp_path):
    """Write a log."""

    def write(text):
        (tmp_path / "vllm.log").write_text(text)
        return tmp_path / "vllm.log"

    return write


def lines(outcome):
    assert outcome.code == 0, outcome
    return {line["name"]: line for line in json.loads(outcome.out, parse_constant=pytest.fail)["lines"]}


def test_an_old_log_is_read_by_the_rules_of_its_version(kvtwin, log):
    """vLLM 0.9.2 on an A100 of 40 GB, by default 0.9 of it, without CUDA graphs counted."""
    outcome = kvtwin("size", "--log", log(OLD), "--gpu", "a100-40gb", "--json")
    settings = json.loads(outcome.out)["settings"]
    assert (settings["gpu_memory_utilization"], settings["max_num_seqs"], settings["version"]) == (0.9, 256, "0.9.2")
    found = lines(outcome)
    assert "Estimated CUDA graph memory (GiB)" not in found
    assert found["Model loading took (GiB)"]["predicted"] == pytest.approx(15.27, abs=0.02)
    available = found["Available KV cache memory (GiB)"]
    assert available["logged"] == 18.69
    assert available["predicted"] == pytest.approx(18.69, abs=0.1)
    assert available["inside"]
    assert found["Maximum concurrency, in the logged memory"]["predicted"] == 3.32


def test_a_new_log_says_the_gpus_memory_and_sums(kvtwin, log):
    found = lines(kvtwin("size", "--log", log(NEW), "--model", "Llama-3.1-8B", "--json"))
    assert found["non-torch memory (GiB)"]["logged"] == 0.26
    assert found["peak activation, with CUDA graphs (GiB)"]["logged"] == 1.44
    assert found["peak activation, with CUDA graphs (GiB)"]["inside"]
    assert found["GPU KV cache size (tokens), in the logged memory"]["predicted"] == pytest.approx(460_496, abs=48)


def test_the_text_has_a_row_for_each_line(kvtwin, log):
    out = kvtwin("size", "--log", log(OLD), "--gpu", "a100-40gb").out
    assert "\nline " in out
    (row,) = [row for row in out.splitlines() if row.startswith("Available KV cache memory")]
    assert "18.69" in row
    assert " to " in row


def test_python_gets_the_same(kvtwin, log):
    path = log(OLD)
    assert kv.size(log=path, gpu="a100-40gb") == json.loads(
        kvtwin("size", "--log", path, "--gpu", "a100-40gb", "--json").out
    )


def test_states_with_a_drafter(kvtwin, log):
    """Two drafts: attention blocks of 560 tokens, 544 without."""
    drafts = "speculative_config={'method': 'mtp', 'num_speculative_tokens': 2}"
    text = NEW.replace("Model loading", f"{drafts}, Model loading")
    text += "INFO [interface.py:919] Setting attention block size to 560 tokens to ensure that\n"
    found = lines(kvtwin("size", "--log", log(text), "--model", "Qwen3-Next-80B-A3B-Instruct", "--json"))
    assert found["attention block size (tokens)"]["logged"] == 560
    assert found["attention block size (tokens)"]["predicted"] == 560


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", [], "no start-up log of vLLM"),
        ("Available KV cache memory: 1.2.3 GiB", [], "no start-up log of vLLM"),
        (OLD, [], "does not say the GPU's memory: add --gpu"),
        (NEW, [], "does not say the model: add --model"),
        (
            OLD.replace("Qwen/Qwen3-8B", "/srv/models/ours"),
            ["--gpu", "l40s"],
            "add --model: the path of its config.json",
        ),
        (OLD.replace("=auto", "=int3"), ["--gpu", "l40s"], "kv_cache_dtype 'int3' is not known"),
        (OLD.replace("tensor_parallel_size=1", "tensor_parallel_size=7"), ["--gpu", "l40s"], "do not divide"),
    ],
)
def test_mistakes_are_one_line(kvtwin, log, text, options, words):
    kvtwin("size", "--log", log(text), *options).complains("--log", words)


def test_a_file_that_is_not_there(kvtwin, tmp_path):
    kvtwin("size", "--log", tmp_path / "none.log").complains("--log", "No such file")
