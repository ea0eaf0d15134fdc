"""Whatever is wrong with the input: one line that says where, exit code 2, nothing printed, nothing left behind."""

import gzip
import io
import json
import os
import zipfile
from pathlib import Path

import pyarrow
import pytest

from kvtwin.experiments.catalogue.gpus import gpu_names
from tests.experiments.conftest import SMALL_SERVER, mooncake_row, small_server, tokens

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
NATIVE_HEADER = {"kvtwin_workload": 1}
TOO_MANY_DIGITS = "9" * 5000
"""More than Python's int() takes."""

BAD_LAST_LINES = [
    ([mooncake_row()], '{"timestamp": 3,', ["malformed JSON"]),
    ([mooncake_row()], "[1]", ["expected a JSON object"]),
    ([mooncake_row()], "[" * 100_000, ["malformed JSON"]),
    ([mooncake_row()], {"timestamp": 1, "input_length": 5, "hash_ids": [1]}, ["output_length", "missing"]),
    ([mooncake_row()], mooncake_row(hash_ids=[1]), ["hash_ids", "ceil(1000/512) = 2 ids, got 1"]),
    ([mooncake_row()], mooncake_row(timestamp=-1), ["timestamp", "got -1"]),
    ([mooncake_row()], json.dumps(mooncake_row(timestamp=float("nan"))), ["NaN"]),
    ([mooncake_row()], '{"timestamp": 1e999, "input_length": 5, "output_length": 1}', ["timestamp", "1E+999"]),
    ([mooncake_row()], mooncake_row(timestamp=2**63), ["timestamp"]),
    ([mooncake_row()], mooncake_row(input_length="10"), ["input_length", "'10'"]),
    ([mooncake_row()], mooncake_row(input_length=2**63, hash_ids=None), ["input_length", "64 bits"]),
    ([mooncake_row()], mooncake_row(output_length=None), ["output_length", "None"]),
    ([NATIVE_HEADER], {"id": "a", "arrival_ns": 0, "prompt_tokens": 3, "output_tokens": 1, "x": 1}, ["'x'"]),
    ([NATIVE_HEADER], tokens(1, 2**70, id="a", arrival_ns=0, output_tokens=1), ["token_ids", "64 bits"]),
    ([NATIVE_HEADER], tokens(1, id="\ud800", arrival_ns=0, output_tokens=1), ["id", "Unicode"]),
    ([NATIVE_HEADER], tokens(1, id="a", cache_salt="\udfff", arrival_ns=0, output_tokens=1), ["cache_salt"]),
    ([AZURE_HEADER], "2023-11-16 18:17:03.9799600,4808", ["3 columns, got 2"]),
    ([AZURE_HEADER], "yesterday,4808,10", ["TIMESTAMP", "'yesterday'"]),
    ([AZURE_HEADER], f"2023-11-16 18:17:03,{TOO_MANY_DIGITS},10", ["ContextTokens"]),
    ([AZURE_HEADER], "2023-11-16 18:17:03,-5,10", ["ContextTokens", "-5"]),
]


@pytest.mark.parametrize("command", [("replay", *SMALL_SERVER), ("trace", "inspect")], ids=["replay", "inspect"])
@pytest.mark.parametrize(("first", "last", "words"), BAD_LAST_LINES, ids=lambda value: str(value)[:40])
def test_a_bad_line_is_named_with_its_file_and_field(kvtwin, write, command, first, last, words):
    path = write(*first, last)
    kvtwin(*command, path).complains(f"{path}:{len(first) + 1}: ", *words)


def _zip(*names):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, json.dumps(mooncake_row()))
    return content.getvalue()


BAD_FILES = {
    "empty": (b"", "found none"),
    "blank": (b"\n \r\n\n", "found none"),
    "header only": (b'{"kvtwin_workload": 1}\n', "found none"),
    "columns only": (AZURE_HEADER.encode(), "found none"),
    "a column is missing": (
        b"TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n",
        "the columns TIMESTAMP, ContextTokens;",
    ),
    "prose": (b"Dear Sir or Madam,\n", "found none below the columns Dear Sir or Madam"),
    "binary": (bytes(range(256)) * 10, "UTF-8"),
    "UTF-16": (json.dumps(mooncake_row()).encode("utf-16"), "UTF-8"),
    "half a gzip": (gzip.compress(json.dumps(mooncake_row()).encode())[:-12], "ends early"),
    "damaged gzip": (b"\x1f\x8b" + b"junk" * 20, "damaged"),
    "damaged xz": (b"\xfd7zXZ\x00" + b"junk" * 20, "damaged"),
    "a zip of two": (_zip("a", "b"), "expected one file in the archive, found 2: a, b"),
    "half a zip": (_zip("a")[:40], "damaged"),
    "half a zstandard": (pyarrow.compress(b"junk" * 99, "zstd", asbytes=True)[:-9], "a"),
    "half a Parquet": (b"PAR1" + b"junk" * 20, "not a Parquet file that can be read"),
}


@pytest.mark.parametrize("command", [("replay", *SMALL_SERVER), ("trace", "inspect")], ids=["replay", "inspect"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_named(kvtwin, tmp_path, command, kind):
    content, words = BAD_FILES[kind]
    path = tmp_path / "trace"
    path.write_bytes(content)
    kvtwin(*command, path).complains(str(path), words)


@pytest.mark.parametrize("command", [("replay", *SMALL_SERVER), ("trace", "inspect")], ids=["replay", "inspect"])
def test_what_is_no_file_is_named(kvtwin, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    kvtwin(*command, tmp_path / "empty").complains("empty: expected files in this folder, found none")
    kvtwin(*command, tmp_path / "nothing").complains("nothing", "No such file")
    kvtwin(*command, tmp_path / "pipe").complains("found a pipe")
    kvtwin(*command, "/dev/null").complains("found none")


@pytest.mark.parametrize("options", [[], ["--max-concurrency", "2"]])
def test_ids_that_are_twice_in_flight(kvtwin, native, options):
    """Also where the second one is sent because another request ends."""
    path = native({"id": "x", "arrival_ns": 0, "output_tokens": 9}, {"id": "y", "arrival_ns": 0}, {"id": "x"})
    path.write_text(path.read_text().replace("2000000000", "0"))
    kvtwin("replay", path, *SMALL_SERVER, *options).complains(f"{path}:4: ", "'x'")


OUT_OF_RANGE = ["-1", "nan", "inf", "-inf", "1e308", "9" * 30, TOO_MANY_DIGITS, "x", "", "0x10"]
WHOLE_FLAGS = [
    "--num-prompts",
    "--max-concurrency",
    "--seed",
    "--prefill-schedule-interval",
    "--long-prefill-token-threshold",
    "--max-num-scheduled-tokens",
    "--max-num-active-seqs",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--num-gpu-blocks-override",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--max-loras",
    "--timed-trace-chunk-hash-size",
]
BYTE_FLAGS = [
    "--kv-cache-memory-bytes",
    "--weight-bytes",
    "--activation-peak-bytes",
    "--cuda-graph-bytes",
    "--other-bytes",
]


@pytest.mark.parametrize("flag", [*WHOLE_FLAGS, *BYTE_FLAGS])
def test_whole_numbers_out_of_range(kvtwin, mooncake, flag):
    path = mooncake(2)
    for value in OUT_OF_RANGE:
        kvtwin("replay", path, *SMALL_SERVER, f"{flag}={value}").complains(flag)
    if flag not in ("--seed", "--long-prefill-token-threshold", *BYTE_FLAGS):
        kvtwin("replay", path, *SMALL_SERVER, flag, "0").complains(flag, "from 1 to")


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--max-model-len", ["0", "-2", "nan", "200000", "9" * 30]),
        ("--gpu-memory-utilization", ["0", "-0.1", "1.01", "nan", "inf", "x"]),
        ("--watermark", ["-0.1", "1", "nan", "inf", "x"]),
        ("--rate-scale", ["0", "-1", "nan", "inf", "x", "1e-320", "1e-18", "1e300"]),
        ("--request-rate", ["0", "-1", "nan", "-inf", "x", "1e-320", "1e-10", "1e300"]),
        ("--burstiness", ["0", "-1", "nan", "inf", "x", "1e-320", "1e-9", "1e300"]),
        ("--session-rate", ["0", "-1", "nan", "-inf", "x", "1e-320", "1e300"]),
        ("--num-sessions", ["0", "-1", "1.5"]),
        ("--concurrent-sessions", ["0", "x"]),
        ("--think-time", ["-1", "nan", "inf", "1e10"]),
        ("--think-time-scale", ["-1", "nan", "inf"]),
        ("--think-time-cap", ["-1", "nan", "inf"]),
        ("--kv-offloading-size", ["-1", "nan", "inf", "1e7", "1e300"]),
        ("--swap-space", ["-1", "nan", "inf", "1e7", "1e300"]),
        ("--timed-trace-sec-multiplier", ["0", "-1", "nan", "inf", "x", "1e-320", "1e30"]),
        ("--metric-percentiles", ["-1", "101", "nan", "", "50,,99", "x"]),
        ("--percentile-metrics", ["ttfs"]),
        ("--goodput", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "ttft:inf", "itl:5", ":5"]),
        ("--scheduling-policy", ["sjf"]),
        ("--prefix-caching-hash-algo", ["builtin"]),
        ("--dtype", ["int3"]),
        ("--kv-cache-dtype", ["int3"]),
        ("--format", ["csv"]),
        ("--step-time", ["exponential", "/"]),
    ],
)
def test_values_out_of_range(kvtwin, mooncake, flag, values):
    path = mooncake(2)
    for value in values:
        kvtwin("replay", path, *SMALL_SERVER, f"{flag}={value}").complains(flag)


DRAFTS = json.dumps({"method": "eagle", "num_speculative_tokens": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--request-rate", "3", "--rate-scale", "2"], ["--request-rate and --rate-scale cannot be combined"]),
        (["--burstiness", "2"], ["--burstiness: needs --request-rate or --session-rate"]),
        (
            ["--session-rate", "1", "--concurrent-sessions", "2"],
            ["--session-rate and --concurrent-sessions cannot be combined"],
        ),
        (["--session-rate", "1", "--rate-scale", "2"], ["--session-rate and --rate-scale cannot be combined"]),
        (["--num-sessions", "1", "--request-rate", "2"], ["--request-rate: ", "has sessions; use --session-rate"]),
        (["--think-time", "1", "--think-time-cap", "2"], ["--think-time: replaces every pause"]),
        (["--think-time", "1"], ["--think-time", "no request of the trace waits"]),
        (["--think-time-cap", "1"], ["--think-time", "no request of the trace waits"]),
        (["--max-num-batched-tokens", "9", "--max-num-seqs", "10"], ["--max-num-batched-tokens: expected at least"]),
        (["--allocator", "contiguous-max", "--kv-offloading-size", "1"], ["--kv-offloading-size: blocks can be found"]),
        (["--allocator", "contiguous-max", "-sc", DRAFTS], ["--speculative-config: contiguous-max takes none\n"]),
        (["--max-num-batched-tokens", "3", "--max-num-seqs", "1", "-sc", DRAFTS], ["than the 3 lookahead slots"]),
        (["--max-loras", "2"], ["--max-loras: needs --enable-lora"]),
        (["--no-enable-chunked-prefill", "--max-num-batched-tokens", "100"], ["--max-num-batched-tokens"]),
        (["--num-gpu-blocks-override", "2000000000"], ["2,000,000,000 blocks", "--num-gpu-blocks-override"]),
        (["--max-model-len", "40000"], ["To serve at least one request with the model's max seq len (40000)"]),
        (["--max-num-seqs"], ["--max-num-seqs: needs a value"]),
        (["second.jsonl"], ["second.jsonl"]),
        (["-pp", "2"], ["--pipeline-parallel-size"]),
        (["--format", "azure"], ["TIMESTAMP"]),
        (["--format", "azure", "--timed-trace-chunk-hash-size", "16"], ["--format azure"]),
        (["--timed-trace-chunk-hash-size", "16"], ["read it with --timed-trace-chunk-hash-size 512"]),
        (
            ["--timed-trace-label-timestamp", "when"],
            ["its first row has the keys timestamp, input_length, output_length, hash_ids;"],
        ),
        (["--strict", "--max-model-len", "100"], ["trace.jsonl:1: prompt >= max_model_len"]),
        (["--model", "lama-3.1-7b"], ["nearest: meta-llama/Llama-3.1"]),
        (["--model", "x" * 5000], ["no model"]),
        (["--gpu", "h201"], ["no GPU 'h201'", "nearest: H20"]),
        (["--gpu", "rtx"], ["ambiguous"]),
        (["--gpu", "nothing.yaml"], ["nothing.yaml"]),
        (["--tensor-parallel-size", "3"], ["do not divide"]),
        (["--tensor-parallel-size", "64"], ["32 heads do not divide"]),
    ],
)
def test_settings_that_do_not_go_together(kvtwin, mooncake, options, words):
    kvtwin("replay", mooncake(), *SMALL_SERVER, *options).complains(*words)


LLAMA = json.loads((Path(__file__).parents[2] / "experiments/catalogue/configs/llama-3.1-8b.json").read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "x"},
        {"hidden_size": -4},
        {"hidden_size": float("inf")},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": float("nan")},
        {"head_dim": "a"},
        {"layer_types": 5},
        {"layer_types": ["x"]},
        {"layer_types": ["full_attention"] * 31},
        {"layer_types": ["sliding_attention"] * 32},
        {"num_key_value_heads": -8},
        {"head_dim": -64},
        {"hidden_size": 1},
        {"num_local_experts": -1},
        {"num_local_experts": 4, "num_experts_per_tok": -2},
        {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-"},
        {"attention_chunk_size": 512, "no_rope_layers": [1, 1, 0]},
        {"sliding_window": 128, "sliding_window_pattern": "0"},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"quantization_config": 5},
        {"vocab_size": None},
    ],
    ids=str,
)
def test_bad_model_files(kvtwin, write, changes):
    path = write(LLAMA | changes, name="config.json")
    kvtwin("size", "--model", path, "--gpu", "h200").complains(str(path))


@pytest.mark.parametrize(
    "flag", ["--format=azure", "--timed-trace-chunk-hash-size=16", "--timed-trace-label-hash-ids=x"]
)
def test_how_to_read_a_trace_is_told_only_of_a_trace(kvtwin, flag):
    server = ("--model", "Llama-3.1-8B", "--gpu", "h200")
    kvtwin("size", *server, flag).complains(f"{flag.partition('=')[0]}: needs --trace")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_model_files_that_are_no_objects(kvtwin, tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    kvtwin("size", "--model", tmp_path, "--gpu", "h200").complains("config.json")


GPU = "{memory_gib: 80, memory_gb_per_s: 3000, bf16_tflops: 900, fp8_tflops: 0, nvlink_gb_per_s: 0, "
GPU += "pcie_gb_per_s: 32}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("80", ".nan"),
        ("80", ".inf"),
        ("80", "1.0e+300"),
        ("80", "-1"),
        ("80", "true"),
        ("3000", "0"),
        ("900", "0"),
        ("32", "x"),
        ("{", "{more: 1, "),
        ("{", "{decode_attention_beside_prompts: 1.6, "),
        (GPU, "5"),
        (GPU, "["),
        (GPU, "[" * 10_000),
        (GPU, "!!python/object:os.system x"),
        ("mine", "\x00"),
    ],
)
def test_bad_gpu_files(kvtwin, tmp_path, old, new):
    path = tmp_path / "gpu.yaml"
    path.write_text(f"mine: {GPU}")
    options = ["size", "--model", "Llama-3.1-8B", "--gpu", path, "--max-model-len", "4096"]
    assert kvtwin(*options).code == 0
    path.write_text(f"mine: {GPU}".replace(old, new, 1))
    kvtwin(*options).complains("gpu.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "step_ns: 1",
        "model: linear\nstep_ns: .nan",
        "model: linear\nstep_ns: -1",
        "model: linear\nstep_ns: 1" + "0" * 400,
        "model: linear\nstep: 1",
        "model: [calibrated]",
        "model: calibrated",
        "model: calibrated\ndecode: {base_ns: {1: 1}, padded_up_to: 0, context_token_ns: 1"
        + "0" * 400
        + "}\nmeasured: {}\n"
        "prefill: {base_ns: {1: 1}, context_token_ns: 0, pair_ns: 0, sequence_ns: 0, sampled_token_ns: 0}",
        "\x00",
    ],
)
def test_bad_step_time_files(kvtwin, mooncake, write, text):
    path = write(text, name="step.yaml")
    kvtwin("replay", mooncake(), *small_server("--step-time", path)).complains("step.yaml")


def test_times_beyond_the_clock(kvtwin, mooncake, native, write):
    endless = write("model: linear\nstep_ns: 1.0e+300", name="step.yaml")
    kvtwin("replay", mooncake(), *small_server("--step-time", endless)).complains("292 years")
    late = native({"arrival_ns": 0}, {"arrival_ns": 2**63 - 1})
    outcome = kvtwin("replay", late, *small_server("--step-time", "roofline"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "arrives 291.7 years after the start" in outcome.err
    assert "the simulated time passes 292 years" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        ["repaly"],
        ["trace", "inspekt", "x"],
        ["replay"],
        ["demo", "x"],
        ["models", "--json"],
        ["trace", "generate"],
        ["trace", "generate", "/nothing/x.jsonl"],
        ["trace", "generate", "x.jsonl", "--conversations-per-s", "0"],
        ["trace", "generate", "x.jsonl", "--seed", "-1"],
        ["trace", "generate", "x.jsonl", "--burstiness", "1e-9"],
        ["trace", "generate", "x.jsonl", "--system-prompts", "10000", "--system-prompt-tokens", "10000"],
        ["trace", "generate", "x.jsonl", "--turns", "nan"],
        ["size", "--model", "Llama-3.1-8B", "--gpu", "h200", "--trace", "nothing"],
    ],
)
def test_other_commands(kvtwin, words):
    kvtwin(*words).complains()


def test_every_gpu_is_found_by_its_name_and_not_by_half_of_it(kvtwin):
    for name in gpu_names():
        assert kvtwin("size", "--model", "SmolLM2-135M", "--gpu", name.lower()).code == 0
    kvtwin("size", "--model", "SmolLM2-135M", "--gpu", "b20").complains("no GPU 'b20'")


def test_bad_lines_are_left_out_when_asked(kvtwin, tmp_path):
    path = tmp_path / "trace"
    row = '{"timestamp": %d, "input_length": 5, "output_length": 4}\n'
    path.write_text(row % 0 + row % 1 + "{\n" + row % 2)
    server = ("--num-gpu-blocks-override", "50", "--max-model-len", "512", "--step-time", "zero")
    kvtwin("replay", path, *server).complains(":3: malformed JSON")
    outcome = kvtwin("replay", path, *server, "--skip-bad-lines")
    assert outcome.code == 0
    assert outcome.err == (
        f"kvtwin: warning: left out 1 bad line: {path}:3: malformed JSON: "
        "Expecting property name enclosed in double quotes\n"
    )
    assert "left out 1 bad line" in kvtwin("trace", "inspect", path, "--skip-bad-lines").out
