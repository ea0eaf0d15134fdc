"""Which tokens a step holds and when their blocks can be hit: the examples of the specification."""

import pytest

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import FinishReason
from tests.cases.engine_harness import Engine, shape


def test_running_requests_come_first_and_share_the_budget_with_those_admitted():
    engine = Engine(39, block_size=4, max_num_batched_tokens=10)
    for name, prompt, max_tokens in (("a", 4, 5), ("b", 25, 2), ("c", 4, 2)):
        engine.add(name, prompt, max_tokens)
    assert [shape(engine.iterate()) for _ in range(4)] == [
        {"a": 4, "b": 6},
        {"a": 1, "b": 9},
        {"a": 1, "b": 9},
        {"a": 1, "b": 1, "c": 4},
    ]


def test_a_step_may_be_smaller_than_the_batched_tokens():
    engine = Engine(99, max_num_batched_tokens=60, max_num_scheduled_tokens=25)
    engine.add("a", 30)
    assert [shape(engine.iterate()) for _ in range(2)] == [{"a": 25}, {"a": 5}]


@pytest.mark.parametrize(
    ("lengths", "adaptive", "tokens"),
    [
        ((30,), False, (30,)),
        ((30, 30), False, (8, 8)),
        ((30, 5, 9), False, (8, 5, 8)),
        ((30, 30), True, (30, 30)),
        ((30,) * 6, True, (10,) * 6),
        ((30,) * 9, True, (8,) * 7 + (4,)),
    ],
)
def test_long_prompts_are_cut_unless_alone(lengths, adaptive, tokens):
    """Threshold 8, budget 60; the adaptive one shares the budget out, but gives nobody less than the threshold."""
    engine = Engine(
        99,
        block_size=4,
        max_num_batched_tokens=60,
        long_prefill_token_threshold=8,
        long_prefill_token_threshold_adaptive=adaptive,
    )
    for index, length in enumerate(lengths):
        engine.add(str(index), length)
    assert tuple(shape(engine.iterate()).values()) == tokens


def test_the_adaptive_limit_needs_a_threshold():
    engine = Engine(99, max_num_batched_tokens=60, long_prefill_token_threshold_adaptive=True)
    engine.add("a", 50)
    engine.add("b", 50)
    assert shape(engine.iterate()) == {"a": 50, "b": 10}


def test_without_chunks_a_prompt_above_the_budget_left_blocks_those_behind_it():
    engine = Engine(99, max_num_batched_tokens=256, max_model_len=256, enable_chunked_prefill=False)
    for name, prompt in (("a", 200), ("b", 60), ("c", 4)):
        engine.add(name, prompt)
    assert [shape(engine.iterate()) for _ in range(2)] == [{"a": 200}, {"b": 60, "c": 4}]


def test_one_empty_step_follows_the_last_request():
    engine = Engine(9)
    request = engine.add("a", 8)
    assert [shape(step) for step in engine.run()] == [{"a": 8}, {}]
    assert engine.steps[-1].finished == [request]


def test_max_model_len_ends_a_request():
    engine = Engine(9, max_model_len=12)
    request = engine.add("a", 8, 50)
    engine.run()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.LENGTH, 4)


def test_the_stop_token_counts_as_an_output_token():
    engine = Engine(9)
    request = engine.add("a", 8, 50, outputs=[1, 2, 3], stop_token_ids=frozenset({3}))
    engine.run()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.STOP, 3)


def test_a_prompt_in_the_middle_samples_nothing():
    engine = Engine(9, max_num_batched_tokens=8)
    engine.add("a", 20)
    assert [step.samples for step in engine.run()] == [[False], [False], [True], []]


def test_blocks_are_hit_in_the_step_that_schedules_their_tokens():
    engine = Engine(39, block_size=4)
    prompt = engine.fresh(9)
    engine.add("a", prompt)
    engine.add("b", prompt)
    assert [admission.num_hit_tokens for admission in engine.iterate().admitted] == [0, 8]


def test_a_block_is_hit_able_when_its_last_token_is_scheduled():
    """The last output token of a request is never computed."""
    engine = Engine(9, block_size=4)
    engine.serve(3, 1)
    assert engine.pool.num_hashed_blocks == 0
    engine.add("a", 3, 2)
    engine.iterate()
    assert engine.pool.num_hashed_blocks == 0
    engine.iterate()
    assert engine.pool.num_hashed_blocks == 1


def test_the_admission_check_reserves_nothing():
    """Two prompts of 8 blocks in a pool of 10 are both admitted, 8 tokens at a time, until one is preempted."""
    engine = Engine(10, block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    engine.add("a", 32)
    engine.add("b", 32)
    assert shape(engine.iterate()) == {"a": 8, "b": 8}
    engine.run()
    assert engine.statistics.num_preemptions == 1


@pytest.mark.parametrize("length", [20, 21])
def test_the_admission_check_is_for_known_tokens_only(length):
    """Five blocks: no room is asked for the first output token."""
    engine = Engine(5, block_size=4, max_num_batched_tokens=8, vllm_strict=True)
    engine.add("a", length)
    assert shape(engine.iterate()) == ({"a": 8} if length == 20 else {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"long_prefill_token_threshold": 101, "max_model_len": 100}, "long_prefill_token_threshold: expected at most"),
        ({"max_num_active_seqs": 9, "max_num_seqs": 8}, "max_num_active_seqs: expected at most"),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 8}, "max_num_batched_tokens: expected at least max_num_seqs"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 200, "max_model_len": 201},
            "max_num_batched_tokens: without chunked prefill",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(num_blocks=9, **settings)


def test_the_defaults_are_vllms():
    config = EngineConfig(num_blocks=9)
    assert (config.block_size, config.enable_prefix_caching, config.prefix_caching_hash_algo) == (16, True, "sha256")
    assert (config.prefix_cache_retention_interval, config.watermark, config.scheduler_reserve_full_isl) == (0, 0, True)
    assert (config.enable_chunked_prefill, config.long_prefill_token_threshold) == (True, 0)
    assert (config.scheduling_policy, config.prefill_schedule_interval) == ("fcfs", 1)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.async_scheduling) == (2048, 128, True)
