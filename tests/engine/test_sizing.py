"""The planner against 60 recorded answers of the real one, and against cases from public bug reports."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvtwin.engine.sizing.cache_plan import plan_cache
from kvtwin.engine.sizing.group_planning import CacheLayer, SizingError
from kvtwin.engine.sizing.layer_spec import LayerSpec
from kvtwin.engine.sizing.memory_budget import (
    GIB,
    GivenBytes,
    Server,
    default_max_num_batched_tokens,
    default_max_num_seqs,
    memory_budget,
    rules_of,
)
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.engine.sizing.state_checkpoints import checkpoint_grid, with_checkpoints
from kvtwin.experiments.catalogue.models import load_model

GOLDEN = json.loads((Path(__file__).parent / "golden_plans.json").read_text())
KINDS = {
    "FullAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
}
ORACLE_KINDS = {
    "full": "full_attention",
    "sliding_window": "sliding_window",
    "chunked_local": "chunked_local_attention",
}


def layer(kind="full_attention", kv_heads=8, head=128, window=None, block_size=16, head_v=None, count=1):
    spec = LayerSpec(kind, kv_heads, head, head_v or head, window)
    page = spec.token_bytes("auto", "float16") * block_size
    return [CacheLayer(spec, block_size, page, page)] * count


def plan(layers, available_bytes=10 * GIB, max_model_len=8192, in_flight_tokens=2048, **options):
    return plan_cache(
        [layers], [available_bytes], max_model_len=max_model_len, in_flight_tokens=in_flight_tokens, **options
    )


def golden_plan(case):
    ranks = [
        [
            cache_layer
            for entry in rank
            for cache_layer in layer(
                ORACLE_KINDS[entry["type"]],
                entry["num_kv_heads"],
                entry["head_size"],
                entry.get("sliding_window") or entry.get("attention_chunk_size"),
                entry.get("block_size", case["block_size"]),
                entry.get("head_size_v"),
                entry["count"],
            )
        ]
        for rank in case["ranks"]
    ]
    return plan_cache(
        ranks,
        case["available_bytes"],
        max_model_len=case["max_model_len"],
        in_flight_tokens=case["max_num_batched_tokens"] * (2 if case["async_scheduling"] else 1),
        auto_fit_max_model_len=case["auto_fit"],
        num_gpu_blocks_override=case["override"],
        disable_hybrid_kv_cache_manager=case["disable_hybrid"],
    )


@pytest.mark.parametrize("case", [case for case in GOLDEN if "plan" in case])
def test_plan_equals_the_real_planner(case):
    expected = case["plan"]
    result = golden_plan(case)
    assert result.num_blocks == expected["num_blocks"]
    assert result.max_model_len == expected["max_model_len"]
    assert result.capacity_tokens == expected["capacity_tokens"]
    assert result.concurrency_at(result.max_model_len) == expected["max_concurrency"]
    assert [list(group.layer_indices) for group in result.groups] == [g["layers"] for g in expected["groups"]]
    for group, answer in zip(result.groups, expected["groups"], strict=True):
        assert group.block_size == answer["block_size"]
        if answer["page_bytes"] is not None:  # None: one group with different pages
            assert group.kind == KINDS[answer["kind"]]
            assert {cache_layer.page_bytes for cache_layer in group.layers} == {answer["page_bytes"]}


@pytest.mark.parametrize("case", [case for case in GOLDEN if "error" in case])
def test_refusal_equals_the_real_planner(case):
    expected = case["error"]
    with pytest.raises(SizingError) as caught:
        golden_plan(case)
    assert caught.value.suggested_max_model_len == expected["suggested"]
    if expected["needed_gib"] is not None:
        assert f"({expected['needed_gib']} GiB KV cache is needed" in str(caught.value)
        assert f"memory ({expected['available_gib']} GiB)" in str(caught.value)


def test_one_kind_of_layer_is_one_group():
    result = plan(layer(count=32))
    assert result.num_blocks == 5120
    assert len(result.groups) == 1


def test_windows_are_dealt_round_robin_into_groups_of_the_fewest_layers():
    result = plan(layer("sliding_window", window=1024, count=20) + layer(count=4))
    assert result.num_blocks == 40960
    assert [group.layer_indices for group in result.groups[:2]] == [(0, 5, 10, 15), (1, 6, 11, 16)]
    assert [len(group.layers) for group in result.groups] == [4] * 6


def test_nearly_equal_counts_make_two_large_groups():
    result = plan(layer("sliding_window", window=1024, count=12) + layer(count=13))
    assert [len(group.layers) for group in result.groups] == [12, 13]
    assert result.padding_share(result.groups[0]) == pytest.approx(1 / 13)


def test_six_full_and_29_windows_leave_one_padding_layer():
    result = plan(layer(count=6) + layer("sliding_window", window=1024, count=29))
    assert [len(group.layers) for group in result.groups] == [6, 6, 6, 6, 6, 5]
    assert result.padding_share(result.groups[-1]) == pytest.approx(1 / 6)


def test_full_attention_with_different_heads_shares_one_group_with_mixed_pages():
    result = plan(layer(count=4) + layer(kv_heads=4, count=4))
    assert result.num_blocks == 27306
    assert len(result.groups) == 1


def test_smaller_pages_that_divide_get_larger_blocks_and_others_padding():
    layers = layer(count=2) + layer("sliding_window", 4, window=1024, count=2)
    assert [group.block_size for group in plan(layers).groups] == [16, 32]
    layers = layer(count=2) + layer("sliding_window", 3, window=1024, count=2)
    result = plan(layers)
    assert [group.block_size for group in result.groups] == [16, 16]
    assert result.padding_share(result.groups[1]) == pytest.approx(5 / 8)
    assert result.alignment_tokens == 16


def test_without_the_hybrid_manager_windows_keep_everything():
    layers = layer("sliding_window", window=1024, count=20) + layer(count=4)
    result = plan(layers, disable_hybrid_kv_cache_manager=True)
    assert len(result.groups) == 1
    assert result.num_blocks == 6826
    assert result.request_blocks(8192) == 512


def test_a_window_group_needs_its_window_and_what_is_in_flight():
    layers = layer("sliding_window", window=1024, count=20) + layer(count=4)
    sync = plan(layers, in_flight_tokens=2048)
    async_ = plan(layers, in_flight_tokens=4096)
    assert sync.concurrency_at(8192) == pytest.approx(40960 / (5 * 193 + 512))
    assert async_.concurrency_at(8192) == pytest.approx(40960 / (5 * 321 + 512))


def test_state_layers_hold_one_block_or_two_with_prefix_caching():
    state = [CacheLayer(LayerSpec("mamba", conv_values=60000), 32, 120000, 131072)] * 6
    layers = layer(block_size=32, count=2) + state
    assert plan(layers, mamba_blocks=2).concurrency_at(8192) == pytest.approx(40960 / (256 + 3 * 2))
    assert plan(layers, mamba_blocks=1).concurrency_at(8192) == pytest.approx(40960 / (256 + 3))


class TestStartUpCheck:
    """Four layers of 8 heads in fp16: 262,144 bytes per block."""

    layers = layer(count=4)
    block_bytes = 262_144

    def check(self, available_bytes, max_model_len, **options):
        return plan(self.layers, available_bytes, max_model_len, **options)

    def test_null_block_is_not_usable(self):
        assert self.check(513 * self.block_bytes, 8192).num_blocks == 513
        with pytest.raises(SizingError):
            self.check(512 * self.block_bytes, 8192)

    def test_longest_request_that_fits(self):
        memory = 15 * self.block_bytes + 1234
        result = self.check(memory, 224)
        assert result.num_blocks == 15
        assert result.capacity_tokens == 240
        assert f"{result.concurrency_at(224):.2f}" == "1.07"

    @pytest.mark.parametrize("length", [225, 240])
    def test_too_long_a_request_is_refused_with_a_suggestion(self, length):
        with pytest.raises(SizingError, match="estimated maximum model length is 224") as caught:
            self.check(15 * self.block_bytes + 1234, length)
        assert caught.value.suggested_max_model_len == 224

    def test_one_byte_less_is_one_block_less(self):
        with pytest.raises(SizingError, match="is 208"):
            self.check(15 * self.block_bytes - 1, 224)

    @pytest.mark.parametrize("memory", [0, -5, 100, 262_144])
    def test_no_memory(self, memory):
        with pytest.raises(SizingError, match="No available memory"):
            self.check(memory, 16)

    def test_override_acts_like_that_many_blocks(self):
        assert self.check(10 * GIB, 224, num_gpu_blocks_override=15).num_blocks == 15
        with pytest.raises(SizingError, match="is 224"):
            self.check(10 * GIB, 225, num_gpu_blocks_override=15)

    def test_auto_fit(self):
        result = self.check(15 * self.block_bytes + 1234, 8192, auto_fit_max_model_len=True)
        assert result.max_model_len == 224
        with pytest.raises(SizingError, match="even a single token"):
            self.check(self.block_bytes + 1, 8192, auto_fit_max_model_len=True)


def test_the_rank_with_the_fewest_blocks_decides():
    one, three = layer(count=1), layer(count=3)
    memory = 13 * 3 * 65536
    result = plan_cache([one, three], [memory, memory], max_model_len=100, in_flight_tokens=2048)
    assert result.rank_blocks == (39, 13)
    assert result.num_blocks == 13
    assert result.limiting_rank == 1


def test_ranks_with_different_memory_agree_on_the_smaller_count():
    two = layer(count=2)
    memory = [100 * 2 * 65536, 63 * 2 * 65536]
    result = plan_cache([two, two], memory, max_model_len=100, in_flight_tokens=2048)
    assert (result.num_blocks, result.limiting_rank) == (63, 1)


def test_a_sequence_of_llama_3_70b_takes_two_and_a_half_gib():
    assert 8192 * load_model("Llama-3.1-70B").token_bytes() == 2.5 * GIB


def test_reserving_the_maximum_length_wastes_82_percent_of_a_1500_token_request():
    used = 1500 * load_model("Llama-3.1-70B").token_bytes()
    assert 1 - used / (2.5 * GIB) == pytest.approx(0.82, abs=0.005)


@pytest.mark.parametrize("whole", [False, True])
def test_ranks_of_data_parallelism_share_the_experts(whole):
    """Of 128 experts a GPU of three has a third of each, or 43 whole ones."""
    shape = load_model("Qwen3-30B-A3B")
    expert_bytes = 48 * 3 * 2048 * 768 * 2
    num_experts = 43 if whole else 128 / 3
    shared = shape.weight_bytes(data_parallel_size=3, enable_expert_parallel=whole)
    assert shape.weight_bytes() - shared == round((128 - num_experts) * expert_bytes)
    two_by_two = shape.weight_bytes(2, data_parallel_size=2, enable_expert_parallel=whole)
    assert shape.weight_bytes(2) - two_by_two == 32 * expert_bytes


def test_experts_of_four_bits_are_padded_to_whole_tiles():
    """65.97 GiB: a start-up log of gpt-oss-120b (Marlin kernels); the checkpoint has 60.7."""
    assert load_model("gpt-oss-120b").weight_bytes() / GIB == pytest.approx(65.97, abs=0.2)


def test_hybrid_with_states_grows_the_block_to_hold_one():
    shape = load_model("Qwen3-Next-80B-A3B-Instruct")
    (layers,) = cache_layers(shape, block_size=16)
    assert {cache_layer.block_size for cache_layer in layers} == {544}
    state = next(cache_layer for cache_layer in layers if cache_layer.kind == "mamba")
    assert state.page_bytes / state.data_bytes - 1 == pytest.approx(0.0149, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "capability", "caches", "block_size", "state_blocks"),
    [
        ("Qwen3-Next-80B-A3B-Instruct", 8.0, True, 544, 2),
        ("Qwen3-Next-80B-A3B-Instruct", 9.0, True, 576, 3),
        ("Qwen3-Next-80B-A3B-Instruct", 9.0, False, 544, 1),
        ("Qwen3-Next-80B-A3B-Instruct", 12.0, True, 576, 3),
        ("Qwen3-Next-80B-A3B-Instruct", 0.0, True, 544, 2),
        ("NVIDIA-Nemotron-Nano-9B-v2", 8.0, True, 1312, 3),
        ("NVIDIA-Nemotron-Nano-9B-v2", 9.0, False, 1312, 1),
    ],
)
def test_checkpoints_by_gpu(name, capability, caches, block_size, state_blocks):
    shape = with_checkpoints(load_model(name), caches_prefixes=caches, compute_capability=capability)
    (layers,) = cache_layers(shape, block_size=16)
    assert {layer.block_size for layer in layers} == {block_size}
    states = [layer for layer in layers if layer.kind == "mamba"]
    assert {layer.request_blocks(16384, 8192, 2 if caches else 1) for layer in states} == {state_blocks}


@pytest.mark.parametrize(
    ("alignment", "unit", "expected"), [(None, 16, None), (1, 16, 1), (64, None, 576), (64, 96, 192), (64, 64, 64)]
)
def test_where_checkpoints_lie(alignment, unit, expected):
    assert checkpoint_grid(alignment, 576, unit) == expected


def test_maximum_concurrency_of_layers_with_checkpoints_is_the_real_planners():
    shape = with_checkpoints(load_model("NVIDIA-Nemotron-Nano-9B-v2"), caches_prefixes=True, compute_capability=9.0)
    short = [replace(layer, spec=replace(layer.spec, ssm_dtype="bfloat16")) for layer in shape.layers]
    layers = cache_layers(replace(shape, layers=tuple(short)), block_size=16)
    plan = plan_cache(
        layers, [0], max_model_len=16384, in_flight_tokens=16384, num_gpu_blocks_override=10578, mamba_blocks=2
    )
    assert plan.concurrency_at(16384) == pytest.approx(229.96, abs=0.005)


@pytest.mark.parametrize(
    ("gib", "name", "tokens", "seqs"),
    [
        (178, "B200", 16384, 1024),
        (139, "H200", 8192, 1024),
        (79, "H100", 8192, 1024),
        (79, "A100-80GB", 2048, 256),
        (22, "L4", 2048, 256),
    ],
)
def test_defaults_by_gpu_memory(gib, name, tokens, seqs):
    assert default_max_num_batched_tokens(gib * GIB, name) == tokens
    assert default_max_num_seqs(gib * GIB, name, tokens) == seqs
    assert default_max_num_seqs(gib * GIB, name, 64) == 64


class TestBudget:
    def budget(self, **options):
        shape: ModelShape = load_model("Llama-3.1-8B")
        defaults = {"total_bytes": 80 * GIB, "utilization": 0.9}
        server = Server(max_num_batched_tokens=8192, max_num_seqs=256)
        return memory_budget(shape, server, **{**defaults, **options})

    def test_requested_memory_is_rounded_up(self):
        assert self.budget(total_bytes=1001, utilization=0.5).requested_bytes == 501

    def test_every_item_can_be_given(self):
        given = GivenBytes(weights=1, activation_peak=20, cuda_graphs=300, other=4000)
        budget = self.budget(given=given)
        assert budget.available_bytes == budget.requested_bytes - 4321
        assert budget.available_interval == (budget.available_bytes, budget.available_bytes)
        assert {item.source for item in budget.items} == {"given"}

    def test_estimates_say_so_and_have_an_interval(self):
        budget = self.budget()
        sources = {item.name: item.source for item in budget.items}
        assert sources["weights"] == "exact"
        assert set(sources.values()) == {"exact", "estimate"}
        low, high = budget.available_interval
        assert low < budget.available_bytes < high

    def test_activation_interval_holds_the_public_measurement(self):
        """1.26 GiB for Llama-3-8B with 256 sequences: the log in vLLM's PR 10511."""
        activation = next(item for item in self.budget().items if item.name == "activation peak")
        assert activation.low_bytes < 1.26 * GIB < activation.high_bytes

    @pytest.mark.parametrize(
        ("num_seqs", "tokens", "drafts", "gpu", "graphs"),
        [
            (256, 2048, 0, "L4", 51 + 35),  # what start-up logs show
            (32, 8192, 0, "L4", 11 + 7),
            (1024, 8192, 0, "H100", 51 + 51),
            (1024, 8192, 0, "B200-180GB", 83 + 83),
            (64, 32, 0, "L4", 7 + 7),
            (8, 2048, 2, "L4", 9 + 4),
        ],
    )
    def test_graphs_are_counted_as_vllm_captures_them(self, num_seqs, tokens, drafts, gpu, graphs):
        server = Server(max_num_batched_tokens=tokens, max_num_seqs=num_seqs, num_drafts=drafts, gpu_name=gpu)
        assert server.num_graphs() == graphs

    def test_the_sampler_runs_on_the_last_rank_only(self):
        server = Server(max_num_batched_tokens=512, max_num_seqs=1024, pipeline_parallel_size=2)
        peaks = [
            item.num_bytes
            for rank in (0, 1)
            for item in memory_budget(
                load_model("Llama-3.1-8B"), server, total_bytes=80 * GIB, utilization=0.9, rank=rank
            ).items
            if item.name == "activation peak"
        ]
        assert peaks == [512 * (3 * 4096 + 3 * 14336) * 2, 5 * 1024 * 128256 * 4]

    def test_images_are_profiled_and_the_tower_is_weighed(self):
        """32 images of 4,096 patches: as many as 8,192 tokens hold."""
        shape = load_model("gemma-3-27b-it")
        server = Server(max_num_batched_tokens=8192, max_num_seqs=256)
        budget = memory_budget(shape, server, total_bytes=80 * GIB, utilization=0.9)
        items = {item.name: item for item in budget.items}
        patches = 32 * 64 * 64
        assert items["activation peak"].num_bytes == 2 * round(patches * (6 * 1152 + 1.5 * 4304 + 3 * 14 * 14))
        assert "vision tower on 32 images" in items["activation peak"].reason
        tower = 27 * (4 * 1152**2 + 2 * 1152 * 4304) + 3 * 14 * 14 * 1152 + 1152 * 5376
        assert items["vision tower"].num_bytes == 2 * tower

    def test_older_versions_count_less(self):
        graphs = {minor: len(self.budget(rules=rules_of((0, minor))).items) for minor in (20, 21)}
        assert graphs == {20: 3, 21: 4}

    def test_pipeline_ranks_share_the_weights(self):
        shape = load_model("Llama-3.1-8B")
        assert sum(shape.weight_bytes(1, rank, 4) for rank in range(4)) == shape.weight_bytes()
