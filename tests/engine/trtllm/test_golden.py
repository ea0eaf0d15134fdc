"""Values of TensorRT-LLM's own tests; each case names the test that has it."""

import pytest

from kvtwin.engine.trtllm.block import Block
from kvtwin.engine.trtllm.chunking import Context
from kvtwin.engine.trtllm.eviction_queues import EvictionQueues
from kvtwin.engine.trtllm.retention import BlockRetention, RetentionConfig, TokenRange
from tests.engine.trtllm.harness import MS, Cache, iterations, request, scheduler

# ---------------------------------------------------------------- evictionPolicyTest: 8 device and 4 host blocks


@pytest.fixture
def device():
    blocks = [Block(number, on_device=True) for number in range(8)]
    return blocks, EvictionQueues(blocks)


def claim(queues, priority=None, duration_ms=None):
    block = queues.front()
    queues.claim(block, BlockRetention(priority, None if duration_ms is None else duration_ms * MS))
    return block


def test_released_blocks_are_handed_out_in_the_order_of_their_release(device):
    """EvictionPolicy, basic order."""
    _, queues = device
    b1, b2 = claim(queues), claim(queues)
    queues.release(b2, 0)
    queues.release(b1, 0)
    for _ in range(6):
        claim(queues)
    assert [claim(queues), claim(queues)] == [b2, b1]


def test_the_lowest_priority_goes_first(device):
    """EvictionPolicy, priorities 80 and 5."""
    _, queues = device
    high, low = claim(queues, 80), claim(queues, 5)
    queues.release(high, 0)
    queues.release(low, 0)
    assert queues.front() is low


def test_only_what_is_worth_it_is_offloaded():
    """EvictionPolicy, offloading: priority 5 is handed out first and dropped; a default one goes to the host."""
    cache = Cache(8, num_host_blocks=4)
    low = RetentionConfig((TokenRange(0, None, 5),))
    for first in (0, 50):
        cache.end(cache.add(range(first, first + 17), low if first == 0 else None)[0])
    assert cache.manager.num_saved_blocks == 0
    cache.end(cache.add(range(100, 104))[0])
    assert cache.manager.num_saved_blocks == 0
    cache.end(cache.add(range(200, 232))[0])
    assert cache.manager.num_saved_blocks > 0


def test_a_priority_that_lasts_a_while_is_the_default_after_it(device):
    """EvictionPolicy, timed: 80 for 1 ms, released at 0."""
    _, queues = device
    block = claim(queues, 80, 1)
    queues.release(block, 0)
    queues.refresh(0)
    assert block.priority == 80
    queues.refresh(2 * MS)
    assert block.priority == 35


def test_what_expires_first_goes_first(device):
    """EvictionPolicy, timed: 80 for 3 ms and 50 for 8 ms, released at 5 ms."""
    _, queues = device
    first, second = claim(queues, 80, 3), claim(queues, 50, 8)
    for _ in range(6):
        claim(queues)
    queues.release(first, 5 * MS)
    queues.release(second, 5 * MS)
    queues.refresh(5 * MS)
    assert queues.front() is second
    queues.refresh(9 * MS)
    assert queues.front() is first


# ---------------------------------------------------------------- kvCacheManagerTest: ranges to blocks

_ = None
RANGES = [
    (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, _, _]),
    (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
    (32, 128, [(0, 1, 80), (1, 2, 5)], [80, _, _, _]),
    (256, 192, [(0, 128, 80)], [80]),
    (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30]),
    (64, 256, [(0, 64, 80), (129, _, 50)], [80, _, _, 50]),
    (64, 256, [(0, 64, 80), (66, 67, 50)], [80, _, _, _]),
    (64, 256, [(127, 193, 80)], [_, _, 80, 80]),
    (64, 32, [(127, 193, 80)], [_]),
    (64, 128, [(1, _, 80)], [_, 80]),
]


@pytest.mark.parametrize(("size", "length", "ranges", "expected"), RANGES)
def test_a_block_has_the_priority_of_its_first_token(size, length, ranges, expected):
    """KvCacheRetentionConfig, per block."""
    config = RetentionConfig(tuple(TokenRange(*each) for each in ranges))
    assert [each.priority for each in config.of_prompt(length, size)] == expected


@pytest.mark.parametrize(
    "ranges", [[(0, 64, 80), (63, 128, 50)], [(-1, 64, 80)], [(0, _, 80), (64, 128, 50)], [(0, 64, 101)], [(5, 5, 1)]]
)
def test_ranges_that_cannot_be(ranges):
    """KvCacheRetentionConfig, initialisation."""
    with pytest.raises(ValueError, match="expected"):
        RetentionConfig(tuple(TokenRange(*each) for each in ranges))


# ---------------------------------------------------------------- kvCacheManagerTest: reuse


def test_block_manager_reuse():
    """BlockManagerReuseTest: 8 blocks of 4 tokens, the ids and hits of each prompt."""
    cache = Cache(8)
    first, table, hit = cache.add(range(9))
    assert (table, hit) == ([0, 1, 2], 0)
    assert cache.generate(first, 9, 10) == []
    cache.end(first)
    second, table, hit = cache.add(range(9))
    assert (table, hit) == ([0, 1, 3], 8)
    cache.generate(second, 9, 10)
    cache.end(second)
    third, table, hit = cache.add(range(10))
    assert (table, hit) == ([0, 1, 2], 9)
    fourth, table, hit = cache.add(range(11))
    assert (table, hit) == ([0, 1, 4], 8)
    cache.end(third)
    cache.end(fourth)
    _, table, hit = cache.add(range(5))
    assert (table, hit) == ([0, 5], 4)
    _, table, hit = cache.add([*range(10), 11])
    assert (table, hit) == ([0, 1, 4], 10)


@pytest.mark.parametrize(
    ("of_first", "of_second", "expected"),
    [
        pytest.param((90, 5), (5, 5), 11, id="as the newer test has it"),
        pytest.param((5, 90), (90, 5), 0, id="inputs of the older one, whose queue held leaves only: it had 8"),
    ],
)
def test_decode_block_priority(of_first, of_second, expected):
    """KVCacheManagerDecodeBlockPriorityTest: priorities of prompt and decode of two requests."""
    cache = Cache(8)
    numbers = []
    for start, (prompt, decode) in ((0, of_first), (12, of_second)):
        config = RetentionConfig((TokenRange(0, None, prompt),), decode_priority=decode)
        numbers.append(cache.add(range(start, start + 12), config)[0])
        cache.generate(numbers[-1], 0)
    for number in numbers:
        cache.end(number)
    cache.end(cache.add(range(24, 36))[0])
    assert cache.add(range(12))[2] == expected


@pytest.mark.parametrize(("num_blocks", "expected"), [(9, 8), (8, 4)], ids=["newer test", "blocks of the older one"])
def test_decode_timed_eviction(num_blocks, expected):
    """KVCacheManagerDecodeTimedEvictionTest."""
    cache = Cache(num_blocks)
    for first, config in (
        (1, RetentionConfig((TokenRange(0, None, 50),), decode_priority=50)),
        (0, RetentionConfig((), decode_priority=100, decode_duration_ns=20 * MS)),
    ):
        number, _, _ = cache.add([first, *range(1, 12)], config)
        cache.generate(number, 0, 0, 0)
        cache.end(number)
    cache.manager.now_ns = 50 * MS
    cache.manager.refresh()
    cache.end(cache.add([0] * 8)[0])
    assert cache.add(range(12))[2] == expected


def test_timed_eviction():
    """KVCacheManagerTimedEvictionTest."""
    cache = Cache(8)
    for tokens, config in (
        (range(12), RetentionConfig((TokenRange(0, None, 80, 10 * MS),))),
        (range(12, 24), RetentionConfig((TokenRange(0, None, 50),))),
    ):
        cache.end(cache.add(tokens, config)[0])
    cache.manager.now_ns = 50 * MS
    cache.manager.refresh()
    cache.end(cache.add(range(24, 36))[0])
    assert cache.add(range(12, 24))[2] == 11


# ---------------------------------------------------------------- capacitySchedulerTest: 10 tokens per block


BOTH, FIRST, SECOND = ("0", "1"), ("0",), ("1",)
CAPACITY = [
    ("SimpleDoesntFitMaxUtilization", "MAX_UTILIZATION", 100, (0, 0), 119, [(0, BOTH), (41, FIRST), (80, SECOND)]),
    ("SimpleDoesntFitGuaranteedCompletion", "GUARANTEED_NO_EVICT", 100, (0, 0), 160, [(0, FIRST), (80, SECOND)]),
    ("SimpleShouldFit", "GUARANTEED_NO_EVICT", 200, (0, 0), 80, [(0, BOTH)]),
    ("SimpleShouldFit", "MAX_UTILIZATION", 200, (0, 0), 80, [(0, BOTH)]),
    ("SimpleShouldFit", "STATIC_BATCH", 200, (0, 0), 80, [(0, BOTH)]),
    ("...MaxUtilizationDraftTokens", "MAX_UTILIZATION", 100, (5, 10), 129, [(0, BOTH), (31, FIRST), (80, SECOND)]),
]


@pytest.mark.parametrize(("test", "policy", "num_tokens", "drafts", "expected", "changes"), CAPACITY)
def test_two_requests(test, policy, num_tokens, drafts, expected, changes):
    made = scheduler(num_tokens, policy)
    both = [request(made, str(number), 10, 80, drafts=drafts[number]) for number in (0, 1)]
    assert iterations(made, {0: both}) == (expected, changes)


class FixedChunks:
    """A chunk per request, until it is paused after its prompt was computed, as in the original's own test."""

    def __init__(self, size):
        self._size = size

    def sizes(self, contexts, budget):
        return [self._of(each) for each in contexts]

    def _of(self, context: Context):
        is_whole = context.request.num_output_tokens > 0
        return context.num_left if is_whole else min(self._size, context.num_left)


@pytest.mark.parametrize(
    ("policy", "num_tokens", "prompt", "output", "chunk", "expected", "changes"),
    [
        ("MAX_UTILIZATION", 100, 30, 60, 20, 100, [(0, BOTH), (22, FIRST), (61, SECOND)]),
        ("GUARANTEED_NO_EVICT", 100, 30, 60, 20, 122, [(0, FIRST), (61, SECOND)]),
        ("MAX_UTILIZATION", 100, 70, 20, 40, 42, [(0, FIRST), (21, SECOND)]),
        ("MAX_UTILIZATION", 200, 50, 40, 20, 42, [(0, BOTH)]),
        ("GUARANTEED_NO_EVICT", 200, 50, 40, 20, 42, [(0, BOTH)]),
    ],
)
def test_two_requests_in_chunks(policy, num_tokens, prompt, output, chunk, expected, changes):
    """SimpleDoesntFit...InChunk, ...InChunkedCache, SimpleShouldFitInChunk."""
    made = scheduler(num_tokens, policy, enable_chunked_prefill=True)
    made.chunker = FixedChunks(chunk)
    both = [request(made, str(number), prompt, output) for number in (0, 1)]
    assert iterations(made, {0: both}) == (expected, changes)


def test_four_requests_of_which_two_come_later():
    """SimpleDoesntFitAddingNewRequestsMaxUtilization: drops at 21 (both new), 41, 90, 139."""
    made = scheduler(100, "MAX_UTILIZATION", most=4)
    early, late = ([request(made, str(number), 10, 80) for number in pair] for pair in ((0, 1), (2, 3)))
    count, changes = iterations(made, {0: early, 10: late})
    assert count == 227
    assert {at for at, _ in changes} >= {10, 21, 41, 90, 139}


def test_a_higher_priority_goes_first():
    """Priorities 0.5 and 0.5, and 0.6 and 0.7 from iteration 2 on; ours are the reverse."""
    made = scheduler(100, "MAX_UTILIZATION")
    old = [request(made, name, 10, 10, priority=5) for name in "01"]
    new = [request(made, "2", 10, 10, priority=4), request(made, "3", 10, 10, priority=3)]
    assert iterations(made, {0: old, 2: new}) == (20, [(0, BOTH), (2, ("2", "3")), (12, BOTH)])


def test_requests_are_ordered_by_priority_then_arrival():
    """RequestsSortedByPriorities."""
    made = scheduler(100, "GUARANTEED_NO_EVICT")
    for name, priority in enumerate((0.5, 0.5, 0.6, 0.6, 0.6, 1.0, 0.3, 0.3, 0.3, 0.6, 1.0, 0.5)):
        made.add_request(request(made, str(name), 10, 20, priority=-round(10 * priority)))
    assert [int(each.request_id) for each in made.waiting] == [5, 10, 2, 3, 4, 9, 0, 1, 11, 6, 7, 8]
