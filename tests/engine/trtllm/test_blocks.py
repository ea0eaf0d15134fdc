"""The block manager beside the independent small model; ``python -m tests.engine.trtllm.compare_blocks`` does many."""

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.token_marks import TokenMarks
from tests.engine.trtllm.compare_blocks import first_difference
from tests.engine.trtllm.harness import Cache
from tests.engine.trtllm.operations import random_case


@pytest.mark.parametrize("seeds", [range(start, start + 5) for start in range(0, 20, 5)], ids=str)
def test_equal_to_the_model(seeds):
    assert [seed for seed in seeds if first_difference(random_case(seed))] == []


def test_events_tell_what_enters_the_tree_moves_and_leaves():
    cache = Cache(2, num_host_blocks=1, logs_events=True)
    log = cache.manager.events
    cache.end(cache.add(range(5))[0])
    cache.end(cache.add(range(50, 55))[0])
    cache.end(cache.add(range(100, 105))[0])
    events = log.take()
    assert [type(event).__name__ for event in events[:2]] == ["Created", "Stored"]
    assert {type(event).__name__ for event in events} == {"Created", "Stored", "Updated", "Removed"}
    assert [event.event_id for event in events] == list(range(len(events)))
    assert log.take() == []


def test_a_prompt_of_another_namespace_finds_nothing():
    cache = Cache(8)
    cache.end(cache.add(range(9))[0])

    def num_found(salt):
        marks = TokenMarks(cache.keys, TokenContent(cache.keys, range(9), cache_salt=salt))
        return cache.manager.lookup(marks, 9).num_tokens

    assert (num_found(None), num_found("s")) == (8, 0)


def test_the_last_block_that_is_taken_back_goes_first():
    cache = Cache(4)
    number, _, _ = cache.add(range(5))
    sequence = cache.live[number][0]
    last = sequence.blocks[-1]
    cache.manager.release_last(sequence)
    assert cache.manager.device_queues.front() is last
