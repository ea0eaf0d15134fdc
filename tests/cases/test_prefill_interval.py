"""``prefill_schedule_interval``: while requests decode, prefill comes every N-th step (specification, section 5.8)."""

import pytest

from tests.cases.engine_harness import Engine, shape

intervals = pytest.mark.parametrize("interval", [1, 2, 3, 5])


def decoding(interval, **config):
    """An engine whose only request has just been prefilled and has 100 tokens to say."""
    engine = Engine(100, prefill_schedule_interval=interval, **config)
    engine.add("a", 4, 100)
    assert shape(engine.iterate()) == {"a": 4}
    return engine


@intervals
def test_steps_without_prefill_between_two_with_it(interval):
    engine = decoding(interval)
    for name in "bcd":
        engine.add(name, 8, 100)
        for _ in range(interval - 1):
            assert name not in shape(engine.iterate())
        assert shape(engine.iterate())[name] == 8


@intervals
def test_what_is_left_waiting_ends_the_hold(interval):
    """Two prompts for a budget of one: the second follows in the next step, its rest only after the interval."""
    engine = decoding(interval, max_num_batched_tokens=8)
    engine.add("b", 7, 100)
    engine.add("c", 7, 100)
    for _ in range(interval - 1):
        assert shape(engine.iterate()) == {"a": 1}
    assert shape(engine.iterate()) == {"a": 1, "b": 7}
    assert shape(engine.iterate()) == {"a": 1, "b": 1, "c": 6}
    for _ in range(interval - 1):
        assert shape(engine.iterate()) == {"a": 1, "b": 1}
    assert shape(engine.iterate()) == {"a": 1, "b": 1, "c": 1}


@intervals
def test_nothing_is_held_while_nothing_decodes(interval):
    """A prompt of many chunks alone, and one that arrives behind it."""
    engine = Engine(100, prefill_schedule_interval=interval, max_num_batched_tokens=8)
    engine.add("a", 24)
    engine.add("b", 16)
    assert [shape(engine.iterate()) for _ in range(5)] == [{"a": 8}] * 3 + [{"b": 8}] * 2


@intervals
def test_a_step_of_decodes_alone_counts_down(interval):
    engine = decoding(interval)
    for _ in range(interval + 3):
        engine.iterate()
    engine.add("b", 8)
    assert shape(engine.iterate()) == {"a": 1, "b": 8}


def test_who_waits_for_an_adapter_is_no_backlog():
    engine = decoding(3, max_loras=1)
    engine.add("holds the seat", 4, 100, lora="sql")
    for _ in range(3):
        engine.iterate()
    engine.add("waits for it", 4, lora="chat")
    for _ in range(4):
        assert "waits for it" not in shape(engine.iterate())
    engine.add("b", 8, 100)
    assert shape(engine.iterate())["b"] == 8
    engine.add("c", 8)
    for _ in range(2):
        assert "c" not in shape(engine.iterate())
    assert shape(engine.iterate())["c"] == 8


def test_a_request_with_one_token_to_compute_is_no_prefill():
    """All of its prompt but the last token is cached: it is admitted while prefill is held, and starts no hold."""
    engine = Engine(100, block_size=4, prefill_schedule_interval=3)
    prompt = engine.fresh(5)
    engine.add("a", prompt, 100)
    engine.iterate()
    engine.add("b", prompt, 100)
    assert shape(engine.iterate()) == {"a": 1, "b": 1}
    for _ in range(2):
        engine.iterate()
    engine.add("c", prompt, 100)
    assert shape(engine.iterate())["c"] == 1
    engine.add("d", 8, 100)
    assert shape(engine.iterate())["d"] == 8
