"""D3, S10 and the admission gate: what a request needs to start, and that a refusal changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.request import FinishReason, Request
from tests.cases.engine_harness import Engine, blocks, shape
from tests.parts import examples


def two_cached_prompts(**config):
    """Four blocks, all cached and free; A's two come first."""
    engine = Engine(4, **config)
    a, b = engine.fresh(32), engine.fresh(32)
    engine.serve(a)
    engine.serve(b)
    assert engine.free_order() == [2, 1, 4, 3]
    return engine, a, b


def snapshot(engine):
    """Everything that a pool remembers."""
    pool = engine.pool
    state = (pool.num_free_blocks, pool.num_hashed_blocks, pool.num_cached_keys, pool.num_evictions)
    return engine.free_order(), list(pool.ref_counts), list(pool.keys), state


def test_hit_blocks_are_not_taken_as_new_blocks_of_the_same_request():
    """vllm#11310, vllm#11565: the hit blocks stand first in the free queue."""
    engine, a, _ = two_cached_prompts()
    engine.add("c", a + engine.fresh(32))
    assert engine.iterate().admitted[0].block_tables == [[1, 2, 4, 3]]


def test_a_failed_allocation_changes_nothing():
    """vllm#37164: three new blocks are needed where two are left besides the hit."""
    engine, a, b = two_cached_prompts(vllm_strict=True)
    before = snapshot(engine)
    engine.add("c", a + engine.fresh(48))
    for _ in range(5):
        assert not engine.iterate().requests
    assert engine.unfinished() == ["c"]
    assert snapshot(engine) == before
    assert engine.cached_prefix([*b, 0]) == 32


@examples(150)
@given(
    block_size=st.integers(1, 6),
    idle=st.integers(1, 30),
    running=st.integers(1, 30),
    new=st.integers(1, 40),
    spare=st.integers(0, 12),
    shares_with=st.sampled_from(["nobody", "idle", "running"]),
    reserved=st.integers(0, 4),
    reserve_full_sequence=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_what_an_allocation_needs_and_takes(
    block_size, idle, running, new, spare, shares_with, reserved, reserve_full_sequence, chunk
):
    """It needs its new blocks and the hit blocks that nobody holds, and takes new ones behind the hit ones."""
    engine = Engine(blocks(idle, block_size) + blocks(running, block_size) + spare, block_size=block_size)
    idle_prompt, running_prompt = engine.fresh(idle), engine.fresh(running)
    engine.serve(idle_prompt)
    engine.add("running", running_prompt, 1)
    engine.scheduler.schedule()
    beginning = {"nobody": [], "idle": idle_prompt, "running": running_prompt}[shares_with]
    prompt = beginning + engine.fresh(new)
    request = Request("new", len(prompt), 1, TokenContent(engine.scheduler.keys, prompt))

    before, free = snapshot(engine), engine.free_order()
    hit = engine.cache.find_hit(request)
    assert snapshot(engine) == before, "a lookup changes nothing"
    hit_blocks = hit.block_tables[0]
    chunk = min(chunk, len(prompt) - hit.num_tokens)
    result = engine.cache.allocate_slots(
        request, chunk, hit, num_reserved_blocks=reserved, reserve_full_sequence=reserve_full_sequence
    )

    num_idle_hits = sum(block in free for block in hit_blocks)
    num_new = blocks(hit.num_tokens + chunk, block_size) - len(hit_blocks)
    needed_now = num_new + num_idle_hits
    needed_at_all = blocks(len(prompt), block_size) - len(hit_blocks) + num_idle_hits
    fits = needed_now == 0 or needed_now + reserved <= len(free)
    if reserve_full_sequence:
        fits = fits and needed_at_all + reserved <= len(free)
    assert (result is not None) == fits
    if result is None:
        assert snapshot(engine) == before
        assert request.block_tables == []
        return
    others = [block for block in free if block not in hit_blocks]
    assert result == [others[:num_new]]
    assert request.block_tables == [hit_blocks + others[:num_new]]
    assert engine.free_order() == others[num_new:]


@pytest.mark.parametrize("chunk", [1, 2, 6])
@pytest.mark.parametrize("hit", [1, 2, 5])
@pytest.mark.parametrize("missing", [0, 1])
def test_idle_hit_blocks_count_against_the_whole_prompt_too(missing, hit, chunk):
    """Blocks of 1: six new ones behind a hit that nobody holds need as many free as both together."""
    engine = Engine(8 + hit + 6 - missing, block_size=1)
    cached = engine.fresh(hit)
    engine.serve(cached)
    engine.add("running", 8)
    engine.core.schedule_next()
    request = Request("new", hit + 6, 1, TokenContent(engine.scheduler.keys, cached + engine.fresh(6)))
    found = engine.cache.find_hit(request)
    assert (found.num_tokens, engine.pool.num_free_blocks) == (hit, hit + 6 - missing)
    result = engine.cache.allocate_slots(request, chunk, found, reserve_full_sequence=True)
    assert (result is None) == missing


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, ["a", "b"]), (0.25, ["a"])])
def test_a_watermark_keeps_blocks_free_while_something_runs(watermark, admitted):
    """S10: a quarter of 13 blocks is 3."""
    engine = Engine(12, watermark=watermark)
    engine.add("a", 80)
    engine.add("b", 80)
    assert list(shape(engine.iterate())) == admitted
    if watermark:
        assert engine.steps[0].admitted[0].block_tables == [[1, 2, 3, 4, 5]]
    engine.run()
    assert engine.statistics.num_preemptions == 0


@examples(100)
@given(
    usable=st.integers(2, 40),
    watermark=st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 0.9]),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
def test_watermark_and_first_step(usable, watermark, lengths):
    """Blocks of 1: the first prompt is admitted if it fits, later ones if the watermark stays free behind them."""
    engine = Engine(usable, block_size=1, watermark=watermark, vllm_strict=True)
    for index, length in enumerate(lengths):
        engine.add(str(index), length)
    kept, free, expected = int(watermark * (usable + 1)), usable, []
    for index, length in enumerate(lengths):
        if length + (kept if index else 0) > free:
            break
        free -= length
        expected.append(str(index))
    step = engine.core.schedule_next()
    assert list(shape(step)) == expected
    assert engine.pool.num_free_blocks == free


def test_a_watermark_does_not_keep_a_lone_request_out_or_a_running_one_from_growing():
    engine = Engine(8, block_size=4, watermark=0.9)
    engine.add("a", 29, 4)
    engine.run()
    assert engine.requests["a"].finish_reason is FinishReason.LENGTH
    assert engine.statistics.num_preemptions == 0


@pytest.mark.parametrize("reserve", [True, False])
def test_the_whole_prompt_must_fit_not_only_its_first_chunk(reserve):
    engine = Engine(
        10,
        block_size=4,
        max_num_batched_tokens=8,
        scheduler_reserve_full_isl=reserve,
    )
    engine.add("running", 4, 8)
    engine.iterate()
    engine.add("big", 40)
    assert ("big" in shape(engine.iterate())) is not reserve
    engine.run()
    assert engine.requests["big"].finish_reason is FinishReason.LENGTH


def test_a_head_that_does_not_fit_blocks_those_behind_it():
    engine = Engine(4, block_size=4)
    engine.add("running", 4, 4)
    engine.iterate()
    engine.add("big", 16)
    engine.add("small", 1)
    assert list(shape(engine.iterate())) == ["running"]
    engine.run()
    assert engine.steps[4].admitted[0].request.request_id == "big"


@pytest.mark.parametrize("field", ["max_num_seqs", "max_num_active_seqs"])
@pytest.mark.parametrize("seats", [1, 2, 5])
def test_no_more_run_than_there_are_seats(field, seats):
    engine = Engine(64, **{field: seats})
    for index in range(6):
        engine.add(str(index), 16, 3)
    most = 0
    while engine.core.has_work():
        engine.iterate()
        most = max(most, len(engine.scheduler.running))
        assert len(engine.steps[-1].requests) <= seats
    assert most == seats
