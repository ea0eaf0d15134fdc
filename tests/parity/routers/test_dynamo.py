"""Our account of Dynamo's workers, and its cost, against the choices of its own SelectionService."""

import gzip
import json
from pathlib import Path

import pytest

from kvtwin.sim.cluster.routers.dynamo import Dynamo, Worker, cost

BLOCK_TOKENS, NUM_WORKERS = 16, 4


@pytest.fixture(scope="module")
def runs():
    return json.loads(gzip.decompress((Path(__file__).parent / "dynamo.json.gz").read_bytes()))


def selections(runs):
    return [event for run in runs for event in run if "selected" in event]


def test_the_cost_of_its_own_projections_names_every_choice(runs):
    """Its index is not mirrored: what overlaps is in its projections."""
    chosen = selections(runs)
    assert len(chosen) >= 400
    num_ties = 0
    for one in chosen:
        costs = [
            cost(prefill, 0, decode, BLOCK_TOKENS, Dynamo())
            for prefill, decode in zip(one["prefill"], one["decode"], strict=True)
        ]
        assert costs[one["worker"]] == pytest.approx(min(costs), abs=1e-9), one
        num_ties += sum(each == pytest.approx(min(costs), abs=1e-9) for each in costs) > 1
    assert num_ties < len(chosen) / 5


def test_our_account_of_each_worker_is_its_own(runs):
    """Blocks in use, shared ones once, and prompt tokens still to compute, after every event."""
    for run in runs:
        workers, place_of = [Worker() for _ in range(NUM_WORKERS)], {}
        for event in run:
            if "ended" in event:
                workers[place_of.pop(event["ended"])].end(event["ended"])
            elif "computed" in event:
                workers[place_of[event["computed"]]].first_token(event["computed"])
            else:
                blocks = [(block, 1) for block in event["blocks"]]
                wanted = [worker.decode_blocks + worker.num_new_blocks(blocks) for worker in workers]
                assert wanted == event["decode"]
                overlaps = [
                    worker.prefill_tokens + event["tokens"] - prefill
                    for worker, prefill in zip(workers, event["prefill"], strict=True)
                ]
                assert all(0 <= overlap <= event["tokens"] and overlap % BLOCK_TOKENS == 0 for overlap in overlaps)
                place, name = event["worker"], event["selected"]
                assert event["to_compute"] == event["tokens"] - overlaps[place]
                workers[place].take(name, event["to_compute"], blocks, 0)
                place_of[name] = place
