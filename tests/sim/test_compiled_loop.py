"""The compiled loop leaves behind what the plain scheduler leaves behind, to the last block and nanosecond."""

from dataclasses import fields
from random import Random

import pytest

from kvtwin.engine.compiled.loop import step_time
from kvtwin.engine.compiled.loop.memory import LoopMemory
from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.scheduler import Scheduler
from kvtwin.engine.speculation import Speculation
from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.setup.sizing import resolve_sizing
from kvtwin.experiments.setup.step_time import step_time_model
from kvtwin.sim import serving
from kvtwin.sim.adjusted import AdjustedStepTime
from kvtwin.sim.compiled_settings import _DECIDED, make_memory
from kvtwin.sim.decode_attention import DecodeAttention
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.server_step_time import HostTime, ServerStepTime
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.tabulated import Curve, StepTables, Surface, TabulatedStepTime
from tests.mutants import FAULTS, is_found
from tests.parts import slow_but
from tests.sim.compiled_cases import difference, interpreted

UNCACHED = {"block_size": 1, "enable_prefix_caching": False}

needs_machine_code = pytest.mark.skipif(machine_code() is None, reason="nothing is compiled here")


@needs_machine_code
@pytest.mark.parametrize("first", slow_but([0], [0, *range(40, 440, 100)]))
def test_random_cases(first):
    totals = dict.fromkeys(difference(first)[1], 0)
    for seed in range(first, first + (40 if first == 0 else 100)):
        differing, counts = difference(seed)
        assert differing == [], seed
        totals = {name: totals[name] + number for name, number in counts.items()}
    assert min(totals[name] for name in ("steps", "preemptions", "rejected", "evictions", "recomputed")) > 0


@needs_machine_code
@pytest.mark.parametrize("seed", [10225])
def test_cases_that_once_differed(seed):
    """10225: of two that end together the first one's end is the end of the warm-up, which forgets all counts."""
    assert difference(seed)[0] == []


@pytest.mark.parametrize("seed", range(8))
def test_the_interpreted_loop_is_the_same(seed):
    with interpreted():
        assert difference(seed)[0] == []


_SERVERS = [
    {},
    {"scheduling_policy": "priority", "async_scheduling": False, "max_num_seqs": 8},
    {"enable_prefix_caching": False, "max_concurrency": 6, "warmup_requests": 20},
    {"num_gpu_blocks_override": 900, "block_size": 32, "max_model_len": 20_000},
    {"step_time": "linear", "long_prefill_token_threshold": 64, "parallel_samples": 3},
]


@needs_machine_code
@pytest.mark.parametrize("options", slow_but(_SERVERS[:3], _SERVERS))
def test_the_folder_of_a_run_is_the_same_byte_for_byte(options, monkeypatch):
    options = read_options(ReplayOptions, {"trace": "demo", **options}, "replay")
    compiled = replay(options)
    assert compiled.machine["decided_by"] == "compiled loop"
    monkeypatch.setattr(serving, "machine_code", lambda: None)
    plain = replay(options)
    assert plain.machine["decided_by"] == "plain scheduler: nothing is compiled here"
    files = compiled.files()
    assert sorted(files) == ["config.yaml", "machine.json", "requests.parquet", "steps.parquet", "summary.json"]
    for name, content in plain.files().items():
        assert name == "machine.json" or files[name] == content, name
    assert compiled.heading == plain.heading


@pytest.mark.parametrize("fault", [pytest.param(name, marks=pytest.mark.slow) for name in list(FAULTS)[::6]])
def test_a_planted_fault_is_found(fault):
    """Some of them; `make mutants` plants all."""
    assert is_found(FAULTS[fault])


def test_every_model_of_step_times_says_the_same_in_numbers(tmp_path):
    """Bit by bit, on random steps; also where experts and windows make the roofline model's formula long."""
    calibrated = tmp_path / "calibrated.yaml"
    calibrated.write_text(
        "model: calibrated\n"
        "decode: {base_ns: {1: 1000.5, 4: 1500.25, 16: 1999.125}, padded_up_to: 4, context_token_ns: 0.37}\n"
        "prefill: {base_ns: {1: 900.1, 64: 5000.7, 512: 90000.3}, context_token_ns: 0.21, pair_ns: 0.0173,"
        " sequence_ns: 11.3, sampled_token_ns: 7.7}\n"
        "measured: {model: m, device: d}\n"
    )
    adjusted = tmp_path / "adjusted.yaml"
    adjusted.write_text("{model: adjusted, base: roofline, decode_scale: 1.07, prefill_scale: 0.93, step_ns: 1234.5}")
    random = Random(5)
    for name, model in (
        ("zero", "meta-llama/Llama-3.1-8B"),
        ("linear", "meta-llama/Llama-3.1-8B"),
        (str(calibrated), "meta-llama/Llama-3.1-8B"),
        ("roofline", "meta-llama/Llama-3.1-8B"),
        (str(adjusted), "meta-llama/Llama-3.1-8B"),
        ("roofline", "mistralai/Mixtral-8x7B-v0.1"),
        ("roofline", "google/gemma-3-27b-it"),
    ):
        gpu = "rtx-pro-6000" if name == "roofline" else "h200"
        given = {"trace": "demo", "model": model, "gpu": gpu, "tensor_parallel_size": 2, "step_time": name}
        options = read_options(ReplayOptions, given, "replay")
        step_times = step_time_model(options, resolve_sizing(options).inputs)
        check_numbers(step_times, random)


@pytest.mark.parametrize("attention", [None, DecodeAttention(1.7, 12.5, 9)])
def test_tables_say_the_same_in_numbers(attention):
    """Bit by bit, on random steps between their sizes, at them, below and above."""
    random = Random(6)

    def times(number):
        return sorted(random.uniform(1e3, 1e7) for _ in range(number))

    rows, columns = [1, 4, 7, 32], [16, 40.5, 600, 10_000]
    surfaces = [Surface(rows, columns, [times(4) for _ in rows]), Surface([1, 100, 512], columns, [times(4)] * 3)]
    tables = StepTables(Curve([1, 8, 300], times(3)), Curve([1, 32], times(2)), *surfaces)
    model = TabulatedStepTime(
        "aic", tables, {}, decode_attention=attention, sampling_ns_per_token=33.3, step_overhead_ns=1_000
    )
    check_numbers(model, random)
    check_numbers(AdjustedStepTime(ServerStepTime(model, host=HostTime()), 1.07, 0.93, 12.5), random)


def check_numbers(step_times, random):
    """What a compiled loop makes of the numbers of a model, on random steps."""
    config = EngineConfig(num_blocks=10, max_num_seqs=32, max_num_batched_tokens=600)
    memory = make_memory(Scheduler(config), step_times.step_costs(32, 600))
    for _ in range(300):
        sequences = random.randint(1, 32)
        decodes = random.randint(0, sequences)
        prefill = random.randint(sequences - decodes, 600 - decodes) if sequences > decodes else 0
        context = random.randint(decodes + prefill, 10 ** random.randint(3, 7))
        pairs = random.randint(prefill, 10**9) if prefill else 0
        longest = random.randint(1, context) if decodes else 0
        shape = StepShape(sequences, decodes, prefill, context, pairs, random.randint(0, sequences), longest)
        assert step_time.duration_ns(memory.views(), *shape) == step_times.duration_ns(shape), (step_times.name, shape)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"retention": "pin"}, "retention"),
        ({"speculation": Speculation(method="ngram", num_speculative_tokens=2)}, "speculation"),
        (
            {"allocator": "contiguous-max", "block_size": 1, "enable_prefix_caching": False},
            "allocator",
        ),
        ({"kv_cache_metrics": True}, "kv_cache_metrics"),
        ({"enable_kv_cache_events": True}, "enable_kv_cache_events"),
        ({"encoder_cache_size": 5}, "encoder_cache_size"),
        ({"num_offload_blocks": 5}, "num_offload_blocks"),
    ],
)
def test_what_the_loop_does_not_know_is_decided_by_the_plain_scheduler(settings, reason, monkeypatch):
    monkeypatch.setattr(serving, "machine_code", lambda: True)
    simulation = ServerSimulation(EngineConfig(num_blocks=10, **settings), SimulatedExecutor(LinearStepTime({})))
    simulation._make_compiled()
    assert simulation.decided_by == (f"plain scheduler: {reason}" if reason else "compiled loop")


def test_arrays_grow_and_keep_what_they_hold():
    scheduler = Scheduler(EngineConfig(num_blocks=10))
    memory = LoopMemory(scheduler.kv_cache.pool, 4, LinearStepTime({}).step_costs(4, 10).numbers)
    for name in memory.views()._fields[1:-1]:
        before = memory[name].tolist()
        memory[name][0] = 7
        memory.resize(name, memory.num_rows(name) + 3)
        assert memory[name].tolist()[: len(before)] == [7, *before[1:]]
        assert not any(memory[name][len(before) :])
    assert len(memory.table()) == 2 * (8 + len(memory.views()) - 1)


def test_a_new_setting_is_unknown_to_the_loop():
    """Whoever adds one decides here whether the loop knows it; until then other values than the default are refused."""
    known = {field.name for field in fields(EngineConfig) if field.name in _DECIDED}
    assert known == _DECIDED
    others = {field.name for field in fields(EngineConfig)} - _DECIDED
    assert others == {
        *("allocator", "parallel_sampling", "preemption_mode", "num_swap_blocks", "num_offload_blocks", "retention"),
        *("enable_kv_cache_events", "kv_cache_metrics", "speculation", "encoder_cache_size", "server"),
    }
