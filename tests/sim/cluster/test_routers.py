"""What each router chooses, from what it sees: the formulas of the originals, by hand."""

from collections import Counter

import pytest

from kvtwin.sim.cluster.load import Load
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router_names import ROUTER_NAMES
from kvtwin.sim.cluster.routers.dynamo import Worker
from kvtwin.sim.cluster.routers.llm_d import precise_scores, queue_scores, usage_scores
from kvtwin.sim.cluster.routers.prefix_aware import PrefixAware
from kvtwin.sim.cluster.routers.registry import ROUTERS
from kvtwin.workloads.request_record import RequestRecord
from tests.sim.cluster.replicas import router_named

MINUTE_NS = 60 * 10**9


class Sight:
    """A view as a test sets it."""

    def __init__(self, count=3, block_tokens=16, num_blocks=100):
        self.num_replicas, self.block_tokens, self.num_blocks = count, block_tokens, [num_blocks] * count
        self.in_flight, self.now_ns, self.loads, self.cached = [0] * count, 0, [Load(0, 0, 0.0)] * count, [0] * count

    def scrape(self, interval_ns):
        self.interval_ns = interval_ns
        return [self._Metrics(self, replica) for replica in range(self.num_replicas)]

    def follow_caches(self):
        return [self._Cache(self, replica) for replica in range(self.num_replicas)]

    def tell_first_tokens(self, function):
        self.first_token = function

    def cached_now(self, request):
        return self.cached

    class _Metrics:
        def __init__(self, sight, replica):
            self.sight, self.replica = sight, replica

        def at(self, now_ns):
            return self.sight.loads[self.replica]

    class _Cache(_Metrics):
        def num_cached_tokens(self, record, now_ns):
            return self.sight.cached[self.replica]


def prompt(*parts, session=None):
    """A prompt of named stretches of 64 tokens, or of tokens one by one."""
    number = next(_numbers)
    return RoutedRequest(
        RequestRecord(
            request_id=f"r{number}",
            arrival_ns=0,
            prompt_tokens=64 * len(parts),
            output_tokens=1,
            hash_ids=[sum(parts[: end + 1]) for end in range(len(parts))],
            hash_block_tokens=64,
            session=session,
        ),
        [],
    )


_numbers = iter(range(10**9))


class Asked:
    """A router, and what it chose so far."""

    def __init__(self, name, sight=None, **settings):
        self.sight = sight or Sight()
        self.router = router_named(name, **settings)
        self.router.begin(self.sight)

    def __call__(self, request, holds=False):
        replica = self.router.choose(request, self.sight)
        self.sight.in_flight[replica] += holds
        return replica


def test_every_router_has_its_name_among_the_options():
    assert tuple(ROUTERS) == ROUTER_NAMES


# ---------------------------------------------------------------- without caches


def test_round_robin():
    ask = Asked("round-robin")
    assert [ask(prompt(1)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_even_and_repeats_with_its_seed():
    ask, again = Asked("random"), Asked("random")
    chosen = [ask(prompt(1)) for _ in range(3000)]
    assert chosen == [again(prompt(1)) for _ in range(3000)]
    assert all(900 < count < 1100 for count in Counter(chosen).values())


def test_least_loaded():
    ask = Asked("least-loaded")
    assert [ask(prompt(1), holds=True) for _ in range(4)] == [0, 1, 2, 0]
    ask.sight.in_flight = [5, 2, 2]
    assert ask(prompt(1)) == 1


def test_of_two_drawn_the_less_loaded():
    ask = Asked("power-of-two")
    ask.sight.in_flight = [9, 5, 1]
    chosen = Counter(ask(prompt(1)) for _ in range(600))
    assert chosen[0] == 0  # it is never the better of two
    assert chosen[1] == pytest.approx(200, abs=50)


def test_a_session_stays_and_few_move_when_a_replica_is_added():
    ask, more = Asked("session", Sight(4)), Asked("session", Sight(5))
    before, after = ({s: each(prompt(1, session=str(s))) for s in range(2000)} for each in (ask, more))
    assert {s: ask(prompt(2, session=str(s))) for s in range(2000)} == before
    moved = [s for s in before if before[s] != after[s]]
    assert all(after[s] == 4 for s in moved)
    assert len(moved) == pytest.approx(400, abs=120)
    assert all(count > 300 for count in Counter(before.values()).values())


def test_without_a_session_a_request_is_one_of_its_own():
    ask = Asked("session", Sight(4))
    assert all(count > 20 for count in Counter(ask(prompt(1)) for _ in range(200)).values())


# ---------------------------------------------------------------- cache_aware


def test_cache_aware_goes_where_the_text_was_sent():
    ask = Asked("cache_aware")
    ask.sight.in_flight = [1, 0, 2]
    assert ask(prompt(1, 2, 3)) == 1
    ask.sight.in_flight = [0, 5, 0]
    assert ask(prompt(1, 2, 9, 9)) == 1  # a half of it
    assert ask(prompt(1, 7, 7, 7)) == 0  # a quarter is not more than 0.3: the least loaded
    assert ask(prompt(1, 7, 7, 8)) == 0
    ask.sight.in_flight = [0, 65, 0]  # more than 64 apart
    assert ask(prompt(1, 2, 3)) == 0
    ask.sight.in_flight = [0, 1, 0]
    assert ask(prompt(1, 2, 3)) == 1  # of two that were sent it the one that was so first


def test_cache_aware_needs_both_thresholds_to_call_loads_uneven():
    ask = Asked("cache_aware", balance_abs_threshold=3)
    ask.sight.in_flight = [0, 9, 9]
    assert ask(prompt(1)) == 0
    ask.sight.in_flight = [12, 8, 8]  # 4 apart, but not by half
    assert ask(prompt(1)) == 0
    ask.sight.in_flight = [13, 8, 8]
    assert ask(prompt(1)) == 1


def test_cache_aware_sends_everything_to_one_replica_while_nothing_is_in_flight():
    ask = Asked("cache_aware")
    assert {ask(prompt(n)) for n in range(20)} == {0}


def test_cache_aware_forgets_the_least_recently_sent_text_at_its_intervals():
    ask = Asked("cache_aware", max_tree_size=3 * 64 * 4)
    ask.sight.in_flight = [0, 1, 1]
    for first in (10, 20, 30):
        assert ask(prompt(first, 1)) == 0
    ask.sight.in_flight = [2, 1, 1]
    assert ask(prompt(10, 1)) == 0  # not cut yet, and used again
    ask.sight.now_ns = MINUTE_NS
    assert ask(prompt(20, 1)) == 1  # forgotten: prompts of 128 tokens, and 192 may stay
    assert ask(prompt(30, 1)) == 1
    assert ask(prompt(10, 1)) == 0


# ---------------------------------------------------------------- prefix-aware


def test_prefix_aware_follows_the_longest_prefix_whatever_the_load():
    ask = Asked("prefix-aware")
    home = ask(prompt(1, 2, 3))
    ask.sight.in_flight[home] = 1000
    assert {ask(prompt(1, 2, 3)) for _ in range(10)} == {home}
    assert {ask(prompt(1, n)) for n in range(5, 25)} == {home}
    assert len({ask(prompt(n)) for n in range(100, 130)}) == 3


def test_a_chunk_must_be_whole_tokens():
    with pytest.raises(ValueError, match="128 characters is no whole number of tokens of 3"):
        PrefixAware(characters_per_token=3).begin(Sight())


# ---------------------------------------------------------------- llm-d


def test_the_scores_of_llm_d():
    loads = [Load(0, 9, 0.25), Load(4, 0, 0.5), Load(1, 0, 1.0)]
    assert queue_scores(loads) == [1.0, 0.0, 0.75]
    assert queue_scores([Load(3, 0, 0.0)] * 2) == [1.0, 1.0]
    assert usage_scores(loads) == [0.75, 0.5, 0.0]
    assert precise_scores([0, 32, 96]) == [0.0, 0.0, 1.0]
    assert precise_scores([0, 64, 32, 96]) == [0.0, 0.5, 0.0, 1.0]
    assert precise_scores([0, 64, 64]) == [0.0, 1.0, 1.0]
    assert precise_scores([0, 0]) == [0.0, 0.0]


def test_llm_d_weighs_queue_usage_and_prefix():
    ask = Asked("llm-d")
    home = ask(prompt(1, 2))
    others = [replica for replica in range(3) if replica != home]
    assert {ask(prompt(1, 2)) for _ in range(5)} == {home}
    ask.sight.loads = [Load(9 * (replica == home), 1, 0.6 * (replica == home)) for replica in range(3)]
    assert ask(prompt(1, 2)) in others  # 3 x 1 + 2 x 0 + 2 x 0.4 is less than 2 x 1 + 2 x 1
    ask.sight.loads = [Load(9 * (replica == home), 1, 0.4 * (replica == home)) for replica in range(3)]
    assert ask(prompt(1, 2, 3, 4)) in others
    assert ask.sight.interval_ns == 50_000_000


def test_llm_d_remembers_as_many_blocks_as_the_server_has_the_latest():
    ask = Asked("llm-d", Sight(1, num_blocks=8))
    scores = lambda request: ask.router._prefix_scores(request, ask.sight)[0]  # noqa: E731
    ask(prompt(1, 2))  # 8 blocks
    assert scores(prompt(1, 2)) == [1.0]
    assert scores(prompt(1, 9)) == [0.5]
    ask(prompt(7))  # 4 more: the first blocks of the first prompt go, and what is behind them is found no more
    assert scores(prompt(1, 2)) == [0.0]
    assert scores(prompt(7, 1)) == [0.5]


def test_llm_d_precise_looks_at_events():
    ask = Asked("llm-d-precise")
    ask.sight.cached = [0, 16, 64]
    assert {ask(prompt(1)) for _ in range(5)} == {2}
    ask.sight.loads = [Load(0, 0, 0.0), Load(0, 0, 0.0), Load(5, 0, 0.8)]
    assert ask(prompt(1)) == 2  # 2 + 0 + 0.2, others 0 + 1 + 1: more than 2
    ask.sight.loads = [Load(0, 0, 0.0), Load(0, 0, 0.0), Load(5, 0, 1.0)]
    assert len({ask(prompt(1)) for _ in range(40)}) == 3  # all have 2


# ---------------------------------------------------------------- Dynamo


def test_dynamos_blocks_of_one_prompt_count_once():
    worker, runs = Worker(), [(1, 4), (2, 3)]
    worker.take("a", 100, runs, 1)
    assert (worker.decode_blocks, worker.prefill_tokens) == (8, 100)
    assert worker.num_new_blocks([(1, 4), (2, 5), (3, 1)]) == 3
    worker.take("b", 20, [(1, 4), (2, 5)], 0)
    assert (worker.decode_blocks, worker.prefill_tokens) == (10, 120)
    worker.first_token("a")
    worker.end("b")
    assert (worker.decode_blocks, worker.prefill_tokens) == (8, 0)
    worker.end("a")
    assert (worker.decode_blocks, worker._lengths, worker.requests) == (0, {}, {})


def test_dynamo_weighs_overlap_against_load():
    ask = Asked("dynamo", Sight(2))
    ask.sight.cached = [64, 0]
    assert ask(prompt(1)) == 0  # 0 + 4 against 4 + 4
    assert ask(prompt(1)) == 0  # its blocks are in use already: 0 + 4 against 4 + 4
    ask.sight.cached = [0, 0]
    assert ask(prompt(2)) == 1  # 4 + 8 against 4 + 4
    assert ask(prompt(3)) == 0  # 4 + 8 against 4 + 4 + 8: the prompt there is still to be computed
    ask.sight.first_token(next(iter(ask.router._workers[1].requests)), 1)
    assert ask.router._workers[1].prefill_tokens == 0


def test_dynamos_temperature_spreads():
    ask = Asked("dynamo", Sight(2), router_temperature=1.0)
    ask.sight.cached = [64, 0]
    chosen = []
    for _ in range(400):
        request = prompt(1)
        chosen.append(ask(request))
        ask.router.ended(request, chosen[-1])
    assert 0.2 < sum(chosen) / 400 < 0.35  # e^-1 / (1 + e^-1) is 0.27


# ---------------------------------------------------------------- AIBrix


def test_aibrix_takes_the_best_match_that_is_not_busy():
    ask = Asked("aibrix")
    home = ask(prompt(1, 2))
    assert {ask(prompt(1, 2)) for _ in range(5)} == {home}
    ask.sight.in_flight[home] = 3  # mean 1, deviation 1.41: 3 is more than 2.41
    assert ask(prompt(1, 2)) != home
    ask.sight.in_flight = [7, 7, 7]
    ask.sight.in_flight[home] = 8
    assert ask(prompt(1, 3)) != home  # 8 is more than 7.33 + 0.47


def test_aibrix_looks_only_at_the_least_loaded_where_loads_are_uneven():
    ask = Asked("aibrix")
    home = ask(prompt(1, 2))
    ask.sight.in_flight = [9, 9, 9]
    ask.sight.in_flight[(home + 1) % 3] = 0
    assert ask(prompt(1, 2)) == (home + 1) % 3


def test_aibrix_forgets():
    ask = Asked("aibrix", Sight(2), block_number=128)
    found = lambda request: ask.router._matched(request.prompt(1), 128, [0, 1], [0, 0])  # noqa: E731
    home = ask(prompt(1, 2))
    assert found(prompt(1, 2)) == home
    ask(prompt(7))
    assert found(prompt(1, 2)) is None  # its first blocks are gone
    ask.sight.now_ns = 19 * MINUTE_NS
    ask(prompt(8))
    ask.sight.now_ns = 21 * MINUTE_NS
    ask(prompt(9))
    assert found(prompt(7)) is None
    assert found(prompt(8)) is not None


# ---------------------------------------------------------------- oracle


def test_the_oracle_knows_every_cache():
    ask = Asked("oracle")
    ask.sight.cached, ask.sight.in_flight = [16, 64, 64], [0, 9, 3]
    assert ask(prompt(1)) == 2
