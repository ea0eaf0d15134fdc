"""Steps made up to be measured: what the grid holds, and that the executor really runs them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.cuda_graphs import BATCH_SIZES
from kvtwin.gpu.device_model import DeviceModel, open_device
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.step_grid import num_blocks_of, step_grid
from kvtwin.gpu.step_measurements import measure_steps
from kvtwin.sim.step_shape import step_shape
from tests.gpu.device_run import SMALL
from tests.parts import slow_but

CONFIG = EngineConfig(num_blocks=60, block_size=4, max_model_len=128, max_num_seqs=6, max_num_batched_tokens=64)


@st.composite
def configs(draw):
    seats = draw(st.integers(1, 300))
    return EngineConfig(
        num_blocks=draw(st.integers(2, 5000)),
        block_size=draw(st.sampled_from((1, 4, 16, 128))),
        max_model_len=draw(st.integers(1, 50_000)),
        max_num_seqs=seats,
        max_num_batched_tokens=draw(st.integers(seats, 9000)),
    )


@given(configs(), st.integers(2, 6))
def test_every_step_of_the_grid_could_be_decided(config, num_levels):
    steps = step_grid(config, num_levels)
    assert len(steps) == len(set(steps))
    for step in steps:
        assert 1 <= len(step) <= config.max_num_seqs
        assert sum(sequence.num_tokens for sequence in step) <= config.max_num_batched_tokens
        assert num_blocks_of(step, config.block_size) <= config.num_blocks - 1
        for sequence in step:
            assert sequence.num_tokens >= 1
            assert sequence.context_tokens < config.max_model_len
            if sequence.is_decoding:
                assert (sequence.num_tokens, sequence.samples) == (1, True)
                assert sequence.num_computed_tokens >= 1


def test_the_grid_reaches_what_the_server_allows():
    steps = step_grid(CONFIG, 3)
    decodes = [step for step in steps if all(sequence.is_decoding for sequence in step)]
    assert {len(step) for step in decodes} == {1, 2, 3, 4, 5, 6}
    assert max(step[0].context_tokens for step in decodes) == 127
    assert max(num_blocks_of(step, 4) for step in decodes) > 50
    others = [step for step in steps if step not in decodes]
    assert max(sum(sequence.num_tokens for sequence in step) for step in others) == 64
    assert {sequence.samples for step in others for sequence in step} == {True, False}
    assert any(len({sequence.is_decoding for sequence in step}) == 2 for step in others)
    assert len(step_grid(CONFIG, 5)) > len(steps)


def test_the_grid_has_a_batch_between_any_two_sizes_of_graphs():
    config = EngineConfig(num_blocks=4000, max_model_len=256, max_num_seqs=300, max_num_batched_tokens=512)
    batches = {len(step) for step in step_grid(config, 2) if all(sequence.is_decoding for sequence in step)}
    assert {*BATCH_SIZES, 300} <= batches
    for smaller, larger in pairwise((*BATCH_SIZES[1:], 300)):
        assert any(smaller < batch < larger for batch in batches)


@pytest.mark.parametrize("asynchronous", slow_but([True], [True, False]))
def test_every_step_is_run_on_blocks_of_its_own(asynchronous, monkeypatch):
    config = replace(CONFIG, async_scheduling=asynchronous)
    executor = DeviceModel.load(SMALL, open_device("cpu")).executor(config, records=True)
    seen = []
    collect = executor.collect

    def collect_and_look(ticket):
        result = collect(ticket)
        seen.append((ticket.step, executor.executed[-1] if executor.executed else None))
        return result

    monkeypatch.setattr(executor, "collect", collect_and_look)
    plans = step_grid(config, 2)
    visits = []
    measurements = measure_steps(
        executor,
        config,
        plans,
        vocab_size=SMALL.vocab_size,
        num_visits=2,
        num_repeats=3,
        limit_s=1e9,
        on_visit=lambda: visits.append(1),
    )
    assert len(visits) == 2 * len(plans)
    assert [len(measurement.durations_ns) for measurement in measurements] == [6] * len(plans)
    assert all(duration_ns > 0 for measurement in measurements for duration_ns in measurement.durations_ns)
    assert executor.executed == []
    assert len(seen) == 2 * 4 * len(plans) + 1
    for step, executed in seen[:-1]:
        assert [len(slots) for slots in executed.slots] == step.num_tokens
        assert [len(tokens) for tokens in executed.tokens] == [int(samples) for samples in step.samples]
        tables = [block for table in executed.block_tables for block in table]
        assert len(set(tables)) == len(tables)
        assert 0 not in tables
        contexts = map(sum, zip(step.num_computed_tokens, step.num_tokens, strict=True))
        assert [len(table) for table in executed.block_tables] == [-(-context // 4) for context in contexts]


def test_no_visit_begins_when_the_time_is_up():
    executor = DeviceModel.load(SMALL, open_device("cpu")).executor(CONFIG, records=True)
    settings = {"vocab_size": SMALL.vocab_size, "num_visits": 3, "num_repeats": 2}
    assert measure_steps(executor, CONFIG, step_grid(CONFIG, 3), **settings, limit_s=0) == []


def test_a_measurement_that_is_cut_off_has_both_kinds_of_steps(monkeypatch):
    """From short to long: however slow the model is."""
    executor = DeviceModel.load(SMALL, open_device("cpu")).executor(CONFIG, records=True)
    seconds = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    plans = step_grid(CONFIG, 3)
    found = measure_steps(executor, CONFIG, plans, vocab_size=SMALL.vocab_size, num_visits=3, num_repeats=2, limit_s=13)
    shapes = [step_shape(one.step) for one in found]
    assert len(shapes) == 12
    assert sum(shape.prefill_tokens == 0 for shape in shapes) == 6
    assert max(shape.total_tokens for shape in shapes) < CONFIG.token_budget


def test_a_block_has_the_bytes_that_the_cache_has_for_it():
    model = DeviceModel.load(SMALL, open_device("cpu"))
    executor = model.executor(CONFIG)
    assert model.block_bytes(4) * CONFIG.num_blocks == executor._cache._storage.nbytes
    assert model.dtype is torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(DeviceError, match=r"cuda: torch .* finds no GPU"):
        open_device("cuda")
