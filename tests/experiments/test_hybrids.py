"""Models whose layers need several cache groups, from the command line."""

import json

import numpy as np
import pytest

from kvtwin.engine.sizing.cache_plan import plan_cache
from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.experiments.catalogue.models import load_model, model_names
from tests.experiments.conftest import tokens
from tests.parts import slow_but

BLOCKS = 1000
SERVER = ("--num-gpu-blocks-override", BLOCKS, "--max-model-len", 2048, "--max-num-batched-tokens", 512)
SERVER += ("--max-num-seqs", 16, "--gpu", "h200")


def kinds(name):
    return [layer.spec.kind for layer in load_model(name).layers]


MAMBA_2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": 32768,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "conv_kernel": 4,
    "head_dim": 64,
    "num_heads": 128,
    "n_groups": 8,
    "torch_dtype": "bfloat16",
}
"""Mamba-Codestral-7B."""

QUICK = (
    "meta-llama/Llama-3.1-8B",
    "google/gemma-3-27b-it",
    "google/gemma-4-E4B-it",
    "openai/gpt-oss-20b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "deepseek-ai/DeepSeek-V3.2",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "LiquidAI/LFM2-1.2B",
)
MODELS = [name for index, name in enumerate(model_names()) if name in QUICK or index % 4 == 0]
"""Some of each kind: every model would take minutes."""

WITH_STATES = [name for name in MODELS if "mamba" in kinds(name)]
HYBRIDS = [name for name in MODELS if len(set(kinds(name))) > 1 and name not in WITH_STATES]
WITH_STATES, HYBRIDS = (slow_but(set(QUICK) & set(names), names) for names in (WITH_STATES, HYBRIDS))


def groups_of(result):
    """Kind, block size and window of the groups in the JSON of a command."""
    key = "cache_groups" if "cache_groups" in result else "groups"
    return [{name: group[name] for name in ("kind", "block_size", "window_tokens")} for group in result[key]]


@pytest.fixture
def chat(native):
    """Requests whose prompts share a beginning, in sessions of two turns."""
    rng = np.random.default_rng(1)
    shared = rng.integers(9, size=200).tolist()
    rows = []
    for index in range(8):
        prompt = shared + rng.integers(9, size=200 + 150 * index).tolist()
        for turn in (prompt, prompt + rng.integers(9, size=64).tolist()):
            rows.append(tokens(*map(int, turn), output_tokens=20, arrival_ns=len(rows) * 10**7))
    return native(*rows)


@pytest.fixture
def replayed(kvtwin, chat):
    """Replay the chat with all invariants checked and return the JSON summary."""

    def run(*options):
        outcome = kvtwin("replay", chat, *SERVER, "--check", "--json", *options)
        assert outcome.code == 0, outcome
        return json.loads(outcome.out, parse_constant=pytest.fail)

    return run


@pytest.mark.parametrize("model", slow_but(QUICK, MODELS))
def test_models_of_the_catalogue_are_replayed(replayed, model):
    summary = replayed("--model", model)
    assert (summary["completed"], summary["failed"]) == (16, 0)
    assert 0 < summary["kv_cache_usage_peak"] <= 1
    assert summary["prefix_cache_hits"] % summary["hit_alignment_tokens"] == 0
    assert 0 <= summary["prefix_cache_hit_rate"] < 1
    has_short_blocks = summary["hit_alignment_tokens"] < 1000  # where blocks are longer than a prompt nothing can hit
    assert summary["prefix_cache_hit_rate"] > 0 or not has_short_blocks
    assert summary["num_gpu_blocks"] == BLOCKS


def test_the_groups_of_the_plan_are_those_of_the_engine(kvtwin, replayed):
    options = ["--model", "gemma-3-27b-it"]
    wanted = groups_of(json.loads(kvtwin("size", *SERVER, *options, "--json").out))
    assert groups_of(replayed(*options)) == wanted
    window = {"kind": "sliding_window", "block_size": 16, "window_tokens": 1024}
    assert wanted == [window] * 6 + [{"kind": "full_attention", "block_size": 16, "window_tokens": None}]


def test_the_text_tells_the_groups(kvtwin, chat):
    text = kvtwin("replay", chat, *SERVER, "--model", "gpt-oss-20b").out
    assert "\ngroups  1 x sliding_window of 128 tokens in blocks of 16, 1 x full_attention in blocks of 16\n" in text
    assert "\nUsable blocks:                           999 for 2 groups\n" in text
    text = kvtwin("replay", chat, *SERVER, "--model", "Llama-3.1-8B").out
    assert "\ngroups" not in text
    assert "\nUsable blocks:                           999 x 16 tokens\n" in text
    assert "\ngroups  1 x sliding_window" in kvtwin("replay", chat, *SERVER, "--model", "Mistral-7B-v0.1").out


@pytest.mark.parametrize("model", WITH_STATES)
def test_states_are_cached_where_prefixes_are(kvtwin, chat, replayed, model):
    """Otherwise a request has one block of states in each group, however long it is."""
    cached, single = replayed("--model", model), replayed("--model", model, "--no-enable-prefix-caching")
    assert {group["block_size"] for group in cached["cache_groups"]} == {cached["hit_alignment_tokens"]}
    sizes = {group["kind"]: group["block_size"] for group in single["cache_groups"]}
    assert sizes == {"mamba": 2048, "full_attention": single["block_size"]}
    growth = (
        cached["block_size"] - single["block_size"]
    )  # checkpoints of gated delta nets lie at multiples of 64 tokens
    assert 0 <= growth < 64
    assert growth == 0 or cached["block_size"] % 64 == 0
    assert single["prefix_cache_hits"] == 0
    options = ["replay", chat, *SERVER, "--model", model]
    kvtwin(*options, "--disable-hybrid-kv-cache-manager").complains("without the hybrid KV cache manager")
    kvtwin(*options, "--mamba-cache-mode", "all").complains("--mamba-cache-mode: vLLM 0.33 ignores it")
    kvtwin(*options, "--prefix-match-unit", "100").complains("--prefix-match-unit: expected a divisor")


@pytest.mark.slow
def test_retention_keeps_more_the_shorter_the_interval(replayed):
    options = ["--model", "gpt-oss-20b", "--prefix-cache-retention-interval"]
    rates = [replayed(*options, interval)["prefix_cache_hit_rate"] for interval in ("0", "512", "64", "None")]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    full = replayed("--model", "gpt-oss-20b", "--disable-hybrid-kv-cache-manager")
    assert groups_of(full) == [{"kind": "full_attention", "block_size": 16, "window_tokens": None}]
    assert full["prefix_cache_hit_rate"] >= rates[-1]


def test_a_prefix_that_the_window_groups_did_not_keep_is_told(kvtwin, native):
    shared = [i % 7 for i in range(100)]
    trace = native(*(tokens(*shared, *[index] * 300) for index in range(2)))
    outcome = kvtwin("replay", trace, *SERVER, "--model", "gpt-oss-20b")
    assert "* hit rate 0: prompts share prefixes of at least one block, but these blocks were not kept" in outcome.out
    assert "--prefix-cache-retention-interval None" in outcome.out
    summary = kvtwin(
        "replay", trace, *SERVER, "--model", "gpt-oss-20b", "--prefix-cache-retention-interval", "None", "--json"
    )
    assert json.loads(summary.out)["prefix_cache_hits"] == 96


@pytest.mark.parametrize("model", HYBRIDS)
def test_windows_that_are_let_go_never_fit_fewer_long_requests(model):
    """In the same memory. Shorter requests may: an incomplete group wastes the layers that it lacks."""
    in_flight_tokens = 2 * 2048
    layers = cache_layers(load_model(model), block_size=16)
    longest = max(layer.spec.window_tokens or 0 for layer in layers[0]) + in_flight_tokens
    hybrid, full = (
        plan_cache(
            layers,
            [400 * GIB],
            max_model_len=131_072,
            in_flight_tokens=in_flight_tokens,
            disable_hybrid_kv_cache_manager=disable,
        )
        for disable in (False, True)
    )
    for length in range(2 * longest, 131_073, 8192):
        assert hybrid.concurrency_at(length) >= full.concurrency_at(length)


def test_more_long_requests_run_at_once_with_the_hybrid_manager(kvtwin, native):
    trace = native(*({"prompt_tokens": 6000, "output_tokens": 200, "arrival_ns": index} for index in range(30)))
    options = ["--model", "gemma-3-4b-it", "--kv-cache-memory-bytes", "4GiB", "--max-num-batched-tokens", 512]
    options += ["--max-model-len", 8192, "--json"]
    hybrid, full = (
        json.loads(kvtwin("replay", trace, *options, *more).out)
        for more in ((), ("--disable-hybrid-kv-cache-manager",))
    )
    assert hybrid["completed"] == full["completed"] == 30
    assert hybrid["max_running_requests"] > full["max_running_requests"]
    assert hybrid["duration"] < full["duration"]


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("Llama-3.1-8B", ["32"], ["expected 0 or None without a sliding-window or state-space group, got 32"]),
        ("Llama-4-Scout-17B-16E-Instruct", ["32"], ["expected 0 or None without a sliding-window"]),
        ("gpt-oss-20b", ["20"], ["expected a multiple of 16 tokens", "got 20"]),
        ("gpt-oss-20b", ["-1"], ["expected None, or a whole number from 0"]),
        ("gpt-oss-20b", ["none"], ["expected None, or a whole number from 0", "'none'"]),
    ],
)
def test_retention_intervals_that_vllm_refuses(kvtwin, chat, model, options, words):
    flag = "--prefix-cache-retention-interval"
    kvtwin("replay", chat, *SERVER, "--model", model, flag, *options).complains(f"{flag}: ", *words)


class TestMoreSequencesThanBlocks:
    """vLLM does not start a model with states that has more sequences than blocks, for its CUDA graphs."""

    words = ("--model", "NVIDIA-Nemotron-Nano-9B-v2", "--num-gpu-blocks-override", 184, "--max-model-len", 2048)
    reason = "max_num_seqs (256) exceeds available Mamba cache blocks (184)."

    @pytest.fixture
    def servers(self, chat):
        """Commands that plan a server."""
        limit = ("limit", chat, "--request-rate", 5)
        return [("size",), ("replay", chat), limit]

    def test_every_command_says_why_and_how_many_start(self, kvtwin, servers):
        for command in servers:
            outcome = kvtwin(*command, *self.words, "--gpu", "l40s", *(("--json",) if command != ("size",) else ()))
            assert outcome.code == 2, outcome
            assert f"kvtwin: error: {self.reason}" in outcome.err
            assert "--max-num-seqs 184 starts" in outcome.err

    @pytest.mark.slow
    def test_a_sweep_tells_it_of_its_point(self, kvtwin, chat, tmp_path):
        spec = tmp_path / "sweep.yaml"
        options = "model: NVIDIA-Nemotron-Nano-9B-v2, num-gpu-blocks-override: 184, max-model-len: 2048, gpu: l40s"
        spec.write_text(f"trace: {chat}\noptions: {{{options}}}\naxes: {{max-num-seqs: [184, 185]}}\n")
        outcome = kvtwin("sweep", spec, "--json", "--workers", 1)
        held, refused = json.loads(outcome.out)
        assert outcome.code == 1
        assert "error" not in held
        assert "max_num_seqs (185) exceeds available Mamba cache blocks (184)" in refused["error"]

    def test_as_many_as_blocks_start(self, kvtwin):
        for num_seqs, code in ((184, 0), (185, 2)):
            outcome = kvtwin("size", *self.words, "--max-num-seqs", num_seqs, "--json")
            assert outcome.code == code
            assert json.loads(outcome.out)["suggested_max_num_seqs"] == (184 if code else None)

    def test_without_cuda_graphs_any_number_starts(self, kvtwin, chat):
        for command in (("size",), ("replay", chat)):
            assert kvtwin(*command, *self.words, "--gpu", "l40s", "--enforce-eager").code == 0

    def test_without_states_any_number_starts(self, kvtwin):
        words = ("--model", "Llama-3.1-8B", *self.words[2:])
        assert kvtwin("size", *words, "--max-num-seqs", 1000).code == 0


def test_without_cuda_graphs_they_take_no_memory(kvtwin):
    words = ("size", "--model", "Llama-3.1-8B", "--gpu", "h100", "--enforce-eager")
    (budget,) = json.loads(kvtwin(*words, "--json").out)["budgets"]
    (graphs,) = [item for item in budget["items"] if item["name"] == "CUDA graphs"]
    assert (graphs["bytes"], graphs["high_bytes"], graphs["source"]) == (0, 0, "exact")
    kvtwin(*words, "--cuda-graph-bytes", "1GiB").complains("--cuda-graph-bytes: there are no CUDA graphs")


def test_models_of_states_alone_cache_no_prefixes_unless_told_to(kvtwin, write):
    """vLLM's defaults: no prefix caching, requests of up to 2,048 tokens; a request holds one block, or three."""
    model = ("--model", write(MAMBA_2, name="config.json"), "--gpu", "h200", "--max-num-seqs", 64, "--json")
    alone = json.loads(kvtwin("size", *model).out)
    assert (alone["max_model_len"], alone["max_concurrency"]) == (2048, alone["num_blocks"])
    cached = json.loads(kvtwin("size", *model, "--enable-prefix-caching", "--max-model-len", 8192).out)
    assert cached["max_concurrency"] == pytest.approx(cached["num_blocks"] / 3)
    kvtwin("size", *model, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}').complains(
        "has no attention"
    )


@pytest.mark.slow
def test_compressed_latents_are_replayed_or_refused_by_name(kvtwin):
    """DeepSeek-V4: five groups in blocks of 4 to 256 tokens, whose hits are multiples of 256."""
    server = ("--model", "DeepSeek-V4-Flash", "--num-gpu-blocks-override", 20000, "--max-model-len", 8192)
    summary = json.loads(kvtwin("replay", "demo", *server, "--num-prompts", 12, "--step-time", "zero", "--json").out)
    assert summary["hit_alignment_tokens"] == 256
    kvtwin("size", *server, "--kv-cache-dtype", "bfloat16").complains("modelled in fp8_ds_mla only")
    kvtwin("replay", "demo", *server, "--disable-hybrid-kv-cache-manager").complains("compressed latents without")


@pytest.mark.slow
def test_models_of_states_alone_are_replayed(kvtwin, write):
    model = ("--model", write(MAMBA_2, name="config.json"), "--gpu", "h200", "--max-num-seqs", 64)
    model += ("--max-model-len", 8192)
    without, caching = (
        json.loads(kvtwin("replay", "demo", *model, "--num-prompts", 40, "--json", *flags).out)
        for flags in ((), ("--enable-prefix-caching",))
    )
    assert without["prefix_cache_hits"] == 0 < caching["prefix_cache_hits"]
