"""``kvtwin size``: the printed lines and the exit code."""

import json

import pytest

from kvtwin.experiments.command_line.application import read_words
from kvtwin.experiments.commands import gpus as list_gpus
from kvtwin.experiments.commands import models as list_models
from kvtwin.experiments.commands import size
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.kinds import Bytes
from kvtwin.experiments.options.results import NoOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.setup.sizing import resolve_sizing


def parse(*options):
    return read_words("size", ["--model", "Llama-3.1-8B", *options])


def run(capsys, *options):
    code = size.run(parse(*options))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_cache_memory_given_verbatim(capsys):
    code, out, _ = run(capsys, "--kv-cache-memory-bytes", "10GiB", "--max-model-len", "8192")
    assert code == 0
    assert "models vLLM 0.33.0" in out
    assert "Available KV cache memory: 10.0 GiB" in out
    assert "GPU KV cache size: 81,920 tokens, Maximum concurrency for 8,192 tokens per request: 10.00x" in out


def test_every_budget_line_is_printed_with_its_source(capsys):
    _, out, _ = run(capsys, "--gpu", "H100", "--cuda-graph-bytes", "1GiB")
    for item, source in [
        ("weights", "exact"),
        ("activation peak", "estimate"),
        ("CUDA graphs", "given"),
        ("other (non-torch)", "estimate"),
    ]:
        (line,) = [line for line in out.splitlines() if line.startswith(f"  - {item}")]
        assert source in line
    assert "between" in out


def test_given_bytes_are_subtracted_exactly(capsys):
    given = "--weight-bytes 20GiB --activation-peak-bytes 1GiB --cuda-graph-bytes 1GiB --other-bytes 1GiB"
    code, out, _ = run(capsys, "--gpu", "H100", "--json", *given.split())
    data = json.loads(out)
    requested = data["budgets"][0]["requested_bytes"]
    assert code == 0
    assert data["available_bytes"] == [requested - (23 << 30)]
    assert data["num_blocks"] == (requested - (23 << 30)) // 2_097_152
    assert data["blocks_interval"] is None


def test_a_request_that_cannot_fit_ends_with_vllms_message(capsys):
    code, _, err = run(capsys, "--kv-cache-memory-bytes", "1GiB", "--max-model-len", "131072")
    assert code == 2
    assert "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache" in err
    assert "the estimated maximum model length is 8176." in err


def test_auto_fit(capsys):
    code, out, _ = run(capsys, "--kv-cache-memory-bytes", "1GiB", "--max-model-len", "-1", "--json")
    assert code == 0
    assert json.loads(out)["max_model_len"] == 8176


def test_override_prints_vllms_line(capsys):
    code, out, _ = run(
        capsys,
        "--kv-cache-memory-bytes",
        "1GiB",
        "--num-gpu-blocks-override",
        "100",
        "--max-model-len",
        "160",
    )
    assert code == 0
    assert "Overriding num_gpu_blocks=512 with num_gpu_blocks_override=100" in out


def test_override_alone_needs_no_gpu():
    result = resolve_sizing(parse("--num-gpu-blocks-override", "100", "--max-model-len", "160"))
    assert result.plan.num_blocks == 100


def test_tensor_parallelism_divides_heads_and_doubles_blocks():
    blocks = [
        resolve_sizing(parse("--kv-cache-memory-bytes", "10GiB", "-tp", tp, "--max-model-len", "100")).plan.num_blocks
        for tp in ("1", "2", "8", "16")
    ]
    assert blocks == [5120, 10240, 40960, 40960]


def test_the_limiting_pipeline_rank_is_named(capsys):
    """11, 11 and 10 layers; rank 0 has the embedding too, rank 2 the output head."""
    options = ["--gpu", "A100-40GB", "-pp", "3", "--max-model-len", "1000"]
    _, out, _ = run(capsys, *options)
    assert "pipeline rank 0 limits" in out
    plan = resolve_sizing(parse(*options)).plan
    assert plan.num_blocks == plan.rank_blocks[0] < plan.rank_blocks[1] < plan.rank_blocks[2]


def test_steps_under_way_widen_a_window():
    """Read off the real planner: pipeline ranks, and one more with asynchronous scheduling."""
    steps = []
    for ranks, mode in [
        ("1", "--no-async-scheduling"),
        ("1", "--async-scheduling"),
        ("2", "--async-scheduling"),
    ]:
        options = [
            "--num-gpu-blocks-override",
            "9000",
            "--max-num-batched-tokens",
            "2048",
            "-pp",
            ranks,
            mode,
        ]
        plan = resolve_sizing(read_words("size", ["--model", "Mistral-7B-v0.1", *options])).plan
        steps.append(plan.in_flight_tokens // 2048)
        assert plan.request_blocks(32768) == -(-(4095 + plan.in_flight_tokens) // 16) + 1
    assert steps == [1, 2, 3]


def test_fp8_doubles_the_blocks():
    sizes = ["--kv-cache-memory-bytes", "10GiB", "--max-model-len", "100", "--kv-cache-dtype", "fp8"]
    assert resolve_sizing(parse(*sizes)).plan.num_blocks == 10240


def test_concurrency_at_a_length():
    plan = resolve_sizing(parse("--kv-cache-memory-bytes", "10GiB", "--max-model-len", "8192")).plan
    assert plan.concurrency_at(1000) == 5120 / 63


@pytest.mark.parametrize(
    ("model", "groups", "blocks", "warns"),
    [("Llama-3.1-8B", 1, 10, True), ("gemma-3-27b-it", 7, 2000, False), ("gemma-3-27b-it", 7, 100, True)],
)
def test_the_smallest_request_takes_a_block_of_every_group(capsys, model, groups, blocks, warns):
    options = ["--model", model, "--num-gpu-blocks-override", str(blocks), "--max-model-len", "16"]
    share = groups / (blocks - 1)
    _, out, _ = run(capsys, *options)
    assert f"smallest request  {groups} block" in out
    assert f"{share:.2%} of the pool" in out
    assert ("\nwarning: a request of one token takes" in out) == warns == (share > 0.05)
    data = json.loads(run(capsys, *options, "--json")[1])
    assert data["smallest_request_share"] == share


def test_the_table_of_groups(capsys):
    """62 layers of Gemma 3 27B: ten of full attention, 52 with a window, in groups of ten."""
    options = ["--model", "gemma-3-27b-it", "--kv-cache-memory-bytes", "40GiB", "--max-model-len", "32768"]
    _, out, _ = run(capsys, *options, "--max-num-batched-tokens", "2048", "--no-async-scheduling")
    lines = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    page = str(16 * 16 * 2 * 128 * 2)  # tokens, KV heads, K and V, head size, bytes
    blocks = str((1023 + 2048) // 16 + 2)
    assert [line[1:] for line in lines] == [
        *[["sliding_window", "1024", "9", "16", page, "10.00%", blocks]] * 4,
        *[["sliding_window", "1024", "8", "16", page, "20.00%", blocks]] * 2,
        ["full_attention", "-", "10", "16", page, "0.00%", "2048"],
    ]


def test_states_are_planned_as_the_real_planner_does(capsys):
    """vLLM 0.33.0's planner, asked with the layers that its model class makes: pages of 1,312 x 4,096 bytes."""
    options = ["--model", "NVIDIA-Nemotron-Nano-9B-v2", "--max-num-batched-tokens", "8192"]
    options += ["--max-num-seqs", "199"]
    data = json.loads(run(capsys, *options, "--kv-cache-memory-bytes", "4GiB", "--json")[1])
    assert data["num_blocks"] == 199
    groups = [(group["kind"], group["block_size"], len(group["layers"])) for group in data["groups"]]
    assert groups == [("mamba", 1312, 4)] * 6 + [("mamba", 1312, 3), ("full_attention", 1312, 4)]
    assert {group["page_bytes"] // len(group["layers"]) for group in data["groups"]} == {5_373_952}
    for more, longest in ((), 104_960), (("--no-enable-prefix-caching",), 123_328):
        code, _, err = run(capsys, *options, "--kv-cache-memory-bytes", "2200000000", *more)
        assert code == 2
        assert f"the estimated maximum model length is {longest}." in err


def test_states_in_other_dtypes(capsys):
    """The block of attention grows until its page holds a state; the cache's dtype does not shrink states."""
    state, ssm = 3 * 12288, 128 * 80 * 128

    def block_size(*options):
        given = ("--kv-cache-memory-bytes", "9GiB", "--max-num-seqs", "128", *options)
        out = run(capsys, "--model", "NVIDIA-Nemotron-Nano-9B-v2", "--json", *given)
        return json.loads(out[1])["groups"][0]["block_size"]

    def rounded(num_bytes, token_bytes=4096):
        return -(-num_bytes // (16 * token_bytes)) * 16

    assert block_size() == rounded(2 * state + 4 * ssm) == 1312  # Nemotron-H keeps its matrices in float32
    assert block_size("--mamba-ssm-cache-dtype", "float16") == rounded(2 * state + 2 * ssm) == 672
    assert block_size("--mamba-cache-dtype", "float32") == rounded(4 * state + 4 * ssm)
    assert block_size("--mamba-cache-dtype", "float32", "--mamba-ssm-cache-dtype", "float16") == rounded(
        4 * state + 2 * ssm
    )
    assert block_size("--kv-cache-dtype", "fp8") == rounded(2 * state + 4 * ssm, 2048)


def test_a_trace_is_read_with_the_settings_of_replay(capsys, write):
    trace = write({"t": 0, "in": 40, "out": 8}, name="trace.jsonl")
    labels = ["--timed-trace-label-timestamp", "t", "--timed-trace-label-input-length", "in"]
    labels += ["--timed-trace-label-output-length", "out", "--format", "mooncake"]
    code, out, _ = run(
        capsys, "--num-gpu-blocks-override", "100", "--max-model-len", "160", "--trace", str(trace), *labels
    )
    assert code == 0
    assert "Maximum concurrency for the trace's mean of 48 tokens per request: 33.33x" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "H100", "--gpu-memory-utilization", "92"], "--gpu-memory-utilization"),
        (["--gpu", "H100", "--block-size", "0"], "--block-size: expected a whole number from 1"),
        (["--gpu", "H100", "--max-model-len", "200000"], "more than the model's 131072"),
        (["--gpu", "H100", "--kv-cache-dtype", "int3"], "--kv-cache-dtype: expected one of auto, .*, got 'int3'"),
        (["--gpu", "H100", "--dtype", "int3"], "--dtype: expected one of auto, .*, got 'int3'"),
        (["--gpu", "H100", "-tp", "3"], "do not divide"),
        (["--gpu", "H100", "--mamba-cache-dtype", "float32"], "--mamba-cache-dtype: .* has no state-space layers"),
        (
            ["--gpu", "H100", "--mamba-ssm-cache-dtype", "fp8"],
            "--mamba-ssm-cache-dtype: expected one of auto",
        ),
        (["--gpu", "H100", "--kv-cache-dtype", "fp8_ds_mla"], "needs an MLA model"),
        (["--gpu", "H100", "--model", "NVIDIA-Nemotron-Nano-9B-v2", "-tp", "16"], "40 heads do not divide"),
        (["--gpu", "H100", "--model", "NVIDIA-Nemotron-Nano-9B-v2", "-pp", "56"], "no layer with a cache"),
        (["--gpu", "H100", "-pp", "99"], "pipeline parallel size must be 1 to 32"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as caught:
        resolve_sizing(parse(*options))
    assert "\n" not in str(caught.value)


def test_without_a_log_defaults_are_those_of_a_replay(kvtwin, mooncake):
    planned = json.loads(kvtwin("size", "--json").out)
    replayed = json.loads(kvtwin("replay", mooncake(2), "--json").out)
    assert planned["num_blocks"] == replayed["num_gpu_blocks"]
    for some, message in (({}, "--model is needed"), ({"model": "Llama-3.1-8B"}, "--gpu is needed")):
        with pytest.raises(UserError, match=message):  # of a curve, which marks a server only if one is named
            resolve_sizing(SizingOptions(**some))


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("17", 17), ("10GiB", 10 << 30), ("2.5GB", 2_500_000_000), ("1 MiB", 1 << 20)]
)
def test_sizes(text, num_bytes):
    assert Bytes().read(text) == num_bytes


@pytest.mark.parametrize("text", ["", "10G", "-1", "ten"])
def test_sizes_that_are_not(text):
    with pytest.raises(ValueError, match="is not a size"):
        Bytes().read(text)


def test_listings(capsys):
    assert list_models.run(NoOptions()) == 0
    assert "meta-llama/Llama-3.1-8B" in capsys.readouterr().out
    assert list_gpus.run(NoOptions()) == 0
    assert "H200-141GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--model", "Llama-3.3-70B-Instruct", "--gpu", "a10g"],
            ["131.42 GiB of weights per GPU", "-tp 16", "--gpu MI325X"],
        ),
        (
            ["--model", "Llama-3.1-8B", "--gpu", "l4", "--max-model-len", "65536"],
            ["-tp 2", "an fp8 checkpoint (8.46 GiB"],
        ),
        (["--model", "Qwen3-8B", "--gpu", "rtx-4090", "--max-model-len", "40960"], ["To serve at least one request"]),
    ],
)
def test_what_fits_instead_is_told(capsys, options, told):
    code, _, err = run(capsys, *options)
    assert code == 2
    assert err.count("\n") == 1
    for words in ("What fits: ", "No available memory" if "weights" in told[0] else "estimated maximum", *told):
        assert words in err


def test_without_a_budget_vllms_message_stands_alone(capsys):
    _, _, err = run(capsys, "--model", "Llama-3.1-8B", "--kv-cache-memory-bytes", "1GiB")
    assert "What fits" not in err
