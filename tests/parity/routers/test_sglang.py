"""Our cache_aware against the choices of SGLang's own router, up to the order in which it holds its workers."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.routers.cache_aware import CacheAware
from kvtwin.workloads.request_record import RequestRecord

STRETCH_TOKENS, NUM_WORKERS = 16, 3
CASES = json.loads((Path(__file__).parent / "sglang.json").read_text())


class Sight:
    """What the router sees."""

    num_replicas, now_ns = NUM_WORKERS, 0

    def __init__(self):
        self.in_flight = [0] * NUM_WORKERS


def chosen(case):
    """The worker of every request, in order."""
    absolute, relative = case["thresholds"]
    router, sight = CacheAware(balance_abs_threshold=absolute, balance_rel_threshold=relative), Sight()
    router.begin(sight)
    workers, place_of = [], {}
    for event in case["events"]:
        if "ends" in event:
            sight.in_flight[place_of[event["ends"]]] -= 1
            continue
        stretches = event["stretches"]
        record = RequestRecord(
            request_id=str(event["sent"]),
            arrival_ns=0,
            prompt_tokens=STRETCH_TOKENS * len(stretches),
            output_tokens=1,
            hash_ids=[hash(tuple(stretches[: end + 1])) for end in range(len(stretches))],
            hash_block_tokens=STRETCH_TOKENS,
        )
        worker = router.choose(RoutedRequest(record, []), sight)
        sight.in_flight[worker] += 1
        place_of[event["sent"]] = worker
        workers.append(worker)
    return workers


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_requests_go_where_sglangs_router_sends_them(case):
    ours = chosen(case)
    assert len(ours) > 20
    assert case["workers"] in [[order[worker] for worker in ours] for order in permutations(range(NUM_WORKERS))]


def test_the_cases_meet_every_branch():
    assert {tuple(case["thresholds"]) for case in CASES} == {(3, 1.5), (64, 1.5), (1, 1.0), (5, 3.0)}
    assert sum(len(set(case["workers"])) == NUM_WORKERS for case in CASES) >= 4
