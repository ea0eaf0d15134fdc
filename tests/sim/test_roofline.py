"""The roofline model: known floors, which side of the roof a step is on, and what must only grow."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.catalogue.gpus import load_gpu
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.sim.roofline import (
    ATTENTION_READ_EFFICIENCY,
    LAYER_OVERHEAD_NS,
    STEP_OVERHEAD_NS,
    RooflineStepTime,
)
from kvtwin.sim.step_shape import StepShape

H200 = load_gpu("H200")
MEMORY_EFFICIENCY = H200.memory_efficiency
READ_EFFICIENCY = MEMORY_EFFICIENCY * ATTENTION_READ_EFFICIENCY


def decode(sequences, context):
    return StepShape(sequences, sequences, 0, sequences * context, 0, sequences)


def prefill(tokens, computed=0):
    pairs = tokens * computed + tokens * (tokens + 1) // 2
    return StepShape(1, 0, tokens, computed + tokens, pairs, 1)


@pytest.fixture(scope="module")
def llama():
    return RooflineStepTime(load_model("Llama-3.1-8B"), H200)


def fixed_ns(layers):
    return STEP_OVERHEAD_NS + layers * LAYER_OVERHEAD_NS


def test_decode_of_one_sequence_reads_the_weights_once(llama):
    """8.03 B parameters without the input embedding, in bf16: 15.0 GB, 3.9 ms at 3.84 TB/s."""
    weight_bytes = 2 * (8_030_261_248 - 128256 * 4096)
    expected = weight_bytes / (4.8e12 * MEMORY_EFFICIENCY) * 1e9
    assert llama.duration_ns(decode(1, 1)) - fixed_ns(32) == pytest.approx(expected, rel=0.001)


def test_context_costs_its_bytes(llama):
    """128 KiB per token: 64 sequences of 8,192 tokens are 64 GiB, 20 ms at 3.5 TB/s."""
    added = llama.duration_ns(decode(64, 8193)) - llama.duration_ns(decode(64, 1))
    assert added == pytest.approx((64 << 30) / (4.8e12 * READ_EFFICIENCY) * 1e9, rel=0.001)


def test_a_large_prefill_is_bound_by_arithmetic(llama):
    flops = 2 * 8192 * (8_030_261_248 - 2 * 128256 * 4096)
    matrices = flops / (H200.bf16_flops_per_s * H200.matrix_efficiency) * 1e9
    assert llama.duration_ns(prefill(8192)) > matrices
    assert llama.duration_ns(prefill(8192)) < 1.5 * matrices


def test_tensor_parallelism_divides_the_weights():
    shape = load_model("Llama-3.1-70B")
    step = decode(1, 1)
    one, four = (RooflineStepTime(shape, H200, tensor_parallel_size=tp).duration_ns(step) for tp in (1, 4))
    assert four == pytest.approx((one - fixed_ns(80)) / 4 + fixed_ns(80), rel=0.01)


def test_few_tokens_touch_few_experts():
    moe = RooflineStepTime(load_model("Mixtral-8x7B-v0.1"), H200)
    one, many = (moe.duration_ns(decode(n, 1)) for n in (1, 256))
    assert many / one > 2.5  # 2 of 8 experts against all 8
    assert many < 4 * one


def test_a_window_caps_the_context():
    model = RooflineStepTime(load_model("Mistral-7B-v0.1"), H200)
    assert model.duration_ns(decode(8, 4096)) == model.duration_ns(decode(8, 30000))
    assert model.duration_ns(decode(8, 4096)) > model.duration_ns(decode(8, 2048))


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [("gpt-oss-20b", 12 * 8 * 2 * 64 * 2), ("NVIDIA-Nemotron-Nano-9B-v2", 4 * 8 * 2 * 128 * 2)],
)
def test_beyond_the_windows_only_full_attention_pays_for_context(name, token_bytes):
    model = RooflineStepTime(load_model(name), H200)
    near, far = (model.duration_ns(decode(16, context)) for context in (8192, 24_576))
    read_ns = 16 * 16_384 * token_bytes / (H200.memory_bytes_per_s * READ_EFFICIENCY) * 1e9
    assert far - near == pytest.approx(read_ns, rel=0.001)


def test_a_state_is_read_and_written_once_per_sequence():
    shape = load_model("NVIDIA-Nemotron-Nano-9B-v2")
    model = RooflineStepTime(shape, H200)
    spread = StepShape(2, 2, 0, 2000, 0, 0)
    alone = StepShape(1, 1, 1, 2000, 0, 0)  # as many tokens and as much context, of one sequence
    state_bytes = 27 * (3 * 12_288 * 2 + 128 * 80 * 128 * 4)
    state_ns = 2 * state_bytes / (H200.memory_bytes_per_s * MEMORY_EFFICIENCY) * 1e9
    assert model.duration_ns(spread) - model.duration_ns(alone) == pytest.approx(state_ns, rel=0.001)


def test_fp8_cache_halves_the_cost_of_context():
    shape = load_model("Llama-3.1-8B")
    costs = []
    for kv_cache_dtype in ("auto", "fp8"):
        model = RooflineStepTime(shape, H200, kv_cache_dtype=kv_cache_dtype)
        costs.append(model.duration_ns(decode(64, 8193)) - model.duration_ns(decode(64, 1)))
    assert costs[0] == pytest.approx(2 * costs[1], rel=0.001)


def test_attention_takes_longer_beside_a_prompt_where_heads_share_keys():
    """FlashAttention 2 reads the keys of decoding sequences once per query head then."""
    shape, gpu = load_model("Llama-3.1-8B"), load_gpu("RTX-4090")
    model = RooflineStepTime(shape, gpu)
    alike = RooflineStepTime(shape, replace(gpu, decode_attention_beside_prompts=1.0))
    beside = StepShape(33, 32, 64, 32 * 1000 + 64, 64 * 65 // 2, 33)
    added = model.duration_ns(beside) - alike.duration_ns(beside)
    context_ns = model.duration_ns(decode(32, 1001)) - model.duration_ns(decode(32, 1))
    assert added == pytest.approx(0.6 * context_ns, rel=0.01)
    assert model.duration_ns(decode(32, 1000)) == alike.duration_ns(decode(32, 1000))


def test_both_sides_of_the_roof_count_where_they_meet(llama):
    """About 200 tokens are as long to compute as the weights are to read: 2 ** (1 / 3) times as long together."""
    reads, computes = llama.duration_ns(decode(1, 1)), llama.duration_ns(prefill(2048)) / 10
    both = llama.duration_ns(decode(205, 1))
    assert 1.15 * max(reads, computes) < both < 1.6 * max(reads, computes)


def test_an_empty_step_takes_no_time(llama):
    assert llama.duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0


@cache
def on_h200(name):
    return RooflineStepTime(load_model(name), H200)


STEPS = st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(0, 9000), st.integers(0, 100_000))


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct"])
@given(step=STEPS, grown=st.integers(0, 3), by=st.integers(1, 1000))
def test_a_larger_step_never_takes_less(name, step, grown, by):
    model = on_h200(name)

    def shape(sequences, decodes, tokens, context):
        total = sequences + decodes
        return StepShape(total, decodes, tokens, context + tokens, tokens * context, total)

    larger = list(step)
    larger[grown] += by
    duration = model.duration_ns(shape(*step))
    assert isinstance(duration, int)
    assert model.duration_ns(shape(*larger)) >= duration


def test_description_labels_assumptions(llama):
    described = llama.describe()
    assert described["gpu"] == "H200-141GB"
    assert described["memory_efficiency"] == MEMORY_EFFICIENCY
