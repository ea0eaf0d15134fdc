"""One contiguous range per request: how much is reserved, who waits, and that nothing else changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import FinishReason, Request
from kvtwin.engine.settings import ALLOCATORS
from tests.cases.engine_harness import Engine, shape
from tests.parts import examples

CONTIGUOUS = [name for name in ALLOCATORS if name != "paged"]
EOS = 7
every_allocator = pytest.mark.parametrize("allocator", CONTIGUOUS)


def engine(usable, allocator, **config):
    return Engine(usable, block_size=1, enable_prefix_caching=False, allocator=allocator, **config)


def reserved(allocator, prompt, max_tokens, max_model_len=64):
    cache = engine(64, allocator, max_model_len=max_model_len).cache
    return cache.slots_to_reserve(Request("a", prompt, max_tokens, None))


def test_max_reserves_the_longest_request_there_may_be():
    assert reserved("contiguous-max", 3, 1) == reserved("contiguous-max", 60, 4) == 64


@pytest.mark.parametrize(
    ("output", "slots"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (25, 32), (32, 32), (33, 54), (1000, 54)]
)
def test_pow2_rounds_the_output_up_as_far_as_a_request_may_go(output, slots):
    """25 outputs reserve 32: the paper's example."""
    assert reserved("contiguous-pow2", 10, output) == 10 + slots


@pytest.mark.parametrize(("output", "slots"), [(1, 10), (5, 14), (54, 63), (1000, 63)])
def test_oracle_reserves_what_is_written(output, slots):
    assert reserved("contiguous-oracle", 10, output) == slots


@every_allocator
def test_a_table_grows_inside_its_range(allocator):
    served = engine(64, allocator, max_model_len=32)
    served.add("a", 5, 3)
    served.iterate()
    assert served.table("a") == [1, 2, 3, 4, 5]
    assert served.pool.num_used_blocks == {"max": 32, "pow2": 9, "oracle": 7}[allocator.partition("-")[2]]
    served.iterate()
    assert served.table("a") == [1, 2, 3, 4, 5, 6]
    assert served.steps[-1].new_blocks == [(served.requests["a"], [[6]])]
    served.run()
    assert served.pool.free_ranges() == [(1, 65)]


def test_enough_slots_in_pieces_are_not_enough():
    """Ranges of 4 and 4 on both sides of a running request of 8: one of 5 waits for it, and the one behind as well."""
    served = engine(16, "contiguous-oracle")
    served.add("left", 4)
    served.add("middle", 2, 7)
    served.add("right", 4)
    served.iterate()
    assert served.pool.free_ranges() == [(1, 5), (13, 17)]
    served.add("late", 5)
    served.add("small", 1)
    assert shape(served.iterate()) == {"middle": 1}, "8 slots are free, not 5 in a row; nobody overtakes"
    served.run()
    admitted = [each.request.request_id for step in served.steps for each in step.admitted]
    assert admitted == ["left", "middle", "right", "late", "small"]
    assert next(step.index for step in served.steps if shape(step).get("late")) == 7


@every_allocator
def test_what_is_larger_than_the_pool_is_rejected_and_the_next_one_served(allocator):
    served = engine(12, allocator, max_model_len=12 if allocator == "contiguous-max" else 40)
    if allocator != "contiguous-max":
        big = served.add("big", 10, 4)
        need = 14 if allocator == "contiguous-pow2" else 13
        assert (big.finish_reason, big.finish_message) == (
            FinishReason.REJECTED,
            f"needs {need} slots in a row, pool 12",
        )
    small = served.add("small", 4, 4)
    served.run()
    assert (small.finish_reason, small.num_output_tokens) == (FinishReason.LENGTH, 4)


def test_max_rejects_everybody_where_the_longest_request_does_not_fit():
    served = engine(11, "contiguous-max", max_model_len=12)
    assert served.add("a", 1).finish_message == "needs 12 slots in a row, pool 11"


def test_without_rejection_it_waits_for_ever():
    served = engine(11, "contiguous-max", max_model_len=12, vllm_strict=True)
    served.add("a", 1)
    served.run_dry()
    assert served.unfinished() == ["a"]


def test_the_watermark_stays_free_while_something_runs():
    served = engine(19, "contiguous-oracle", watermark=0.5)
    served.add("a", 5, 2)
    served.iterate()
    served.add("b", 4)
    assert shape(served.iterate()) == {"a": 1}, "13 are free; 10 have to stay"
    served.add("c", 3)
    assert shape(served.iterate()) == {"b": 4, "c": 3}


def test_a_reset_that_preempts_lets_them_reserve_again():
    served = engine(20, "contiguous-oracle")
    served.add("a", 5, 4)
    served.iterate()
    assert served.scheduler.reset_prefix_cache() is False
    assert served.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert served.pool.free_ranges() == [(1, 21)]
    served.run()
    assert served.requests["a"].num_output_tokens == 4


@pytest.mark.parametrize(
    ("setting", "value"),
    [("block_size", 16), ("enable_prefix_caching", True)],
)
def test_the_configuration_refuses_pages_and_prefixes(setting, value):
    config = {"num_blocks": 10, "block_size": 1, "enable_prefix_caching": False, "allocator": "contiguous-max"}
    with pytest.raises(ValueError, match=f"{setting}: contiguous-max takes only"):
        EngineConfig(**config | {setting: value})


def test_an_unknown_allocator_is_named():
    with pytest.raises(ValueError, match="allocator: expected one of paged, contiguous-max"):
        EngineConfig(num_blocks=10, allocator="buddy")


@st.composite
def crowds(draw):
    usable = draw(st.integers(8, 60))
    config = {
        "allocator": draw(st.sampled_from(CONTIGUOUS)),
        "max_model_len": draw(st.integers(4, usable)),
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_batched_tokens": draw(st.sampled_from([3, 8, 64])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
    }
    requests = draw(
        st.lists(
            st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 9), st.integers(0, 2), st.booleans()),
            min_size=1,
            max_size=10,
        )
    )
    return usable, config, requests


@examples(300)
@given(crowds())
def test_everybody_is_served_in_one_range_and_nobody_is_preempted(crowd):
    """Invariants are checked after every iteration; EOS may end a request long before its reservation."""
    usable, config, requests = crowd
    served = engine(usable, **config)
    for turn, (prompt, output, _, priority, stops) in enumerate(sorted(requests, key=lambda request: request[2])):
        prompt = min(prompt, config["max_model_len"] - 1)
        served.add(
            str(turn),
            prompt,
            output,
            outputs=[1] * (output // 2) + [EOS] if stops else (),
            eos_token_id=EOS if stops else None,
            priority=priority,
        )
        served.iterate()
    served.run()
    assert served.statistics.num_preemptions == 0
    assert served.statistics.num_recomputed_tokens == 0
    assert served.pool.free_ranges() == [(1, usable + 1)]
    for turn, request in served.requests.items():
        too_large = served.cache.why_never_fits(request, request.num_tokens)
        assert (request.finish_reason is FinishReason.REJECTED) == (too_large is not None), turn


@examples(100)
@given(crowds())
def test_where_memory_never_binds_the_schedule_is_that_of_pages(crowd):
    _, config, requests = crowd
    logs = []
    for allocator in (config["allocator"], "paged"):
        served = engine(1_000, **config | {"allocator": allocator, "max_model_len": 64, "watermark": 0.0})
        for turn, (prompt, output, _, priority, _) in enumerate(requests):
            served.add(str(turn), prompt, output, priority=priority)
            served.iterate()
        served.run()
        logs.append([(shape(step), [request.request_id for request in step.finished]) for step in served.steps])
    assert logs[0] == logs[1]
