"""NIXL's scheduler side: what the real ``NixlConnector`` and scheduler did in the same cases, and aborts."""

import json
from pathlib import Path

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.block_pool import NO_KEY
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.connected_scheduler import ConnectedScheduler
from kvtwin.engine.connectors.connector import ConnectorRole, Transfers
from kvtwin.engine.connectors.nixl import NixlConnector, RemotePrefill
from kvtwin.engine.request import Request

REMOTE = RemotePrefill(1, "prefilled", [[11, 12, 13]], 40)


class Engine:
    """20 blocks of 16 tokens, of which one is nobody's; prompts of 40 tokens."""

    def __init__(self):
        config = EngineConfig(
            num_blocks=20, block_size=16, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=512,
            async_scheduling=False,
        )  # fmt: skip
        self.connector = NixlConnector(ConnectorRole.BOTH, engine=0)
        self.scheduler = ConnectedScheduler(config, self.connector)
        self.seen = set()

    def add(self, name, outputs=4):
        content = TokenContent(self.scheduler.keys, list(range(40)))
        self.scheduler.add_request(Request(name, 40, outputs, content))

    def step(self, **reported):
        step = self.scheduler.schedule()
        self.scheduler.report(Transfers(**reported))
        self.scheduler.update(step, [(7,) if samples else () for samples in step.samples])
        return step

    @property
    def state(self):
        pool = self.scheduler.kv_cache.pool
        return pool.num_free_blocks, sum(key != NO_KEY for key in pool.keys)


def scheduled(step):
    return [(request.request_id, count) for request, count in zip(step.requests, step.num_tokens, strict=True)]


def test_a_prefilled_prompt_keeps_its_blocks_until_it_is_read():  # the real log: nixl_producer
    engine = Engine()
    engine.connector.keep("p")
    engine.add("p", outputs=1)
    assert scheduled(engine.step()) == [("p", 40)]
    assert engine.state[0] == 16
    assert engine.connector.take_computed("p") == RemotePrefill(0, "p", [[1, 2, 3]], 40)
    assert engine.connector.take_computed("p") is None
    assert engine.step().transfers.kept == ["p"]
    assert engine.state[0] == 16
    assert engine.scheduler.has_requests()
    engine.step(sent=["p"])
    assert engine.state[0] == 19
    assert not engine.scheduler.has_requests()


def test_a_prompt_is_pulled_whole_and_its_last_token_computed_again():  # the real log: nixl_consumer
    engine = Engine()
    engine.connector.pull("d", REMOTE)
    engine.add("d")
    step = engine.step()
    assert scheduled(step) == []
    (read,) = step.transfers.reads
    assert read.pairs == [(11, 1), (12, 2), (13, 3)]
    assert (engine.state[0], list(engine.connector.awaited)) == (16, ["d"])
    assert engine.step(received=["d"]).transfers.reads == []
    assert not engine.connector.awaited
    step = engine.step()
    assert scheduled(step) == [("d", 1)]
    assert [(one.num_hit_tokens, one.block_tables) for one in step.admitted] == [(39, [[1, 2, 3]])]
    assert scheduled(engine.step()) == [("d", 1)]
    external = engine.scheduler.statistics.external_prefix_cache
    assert (external.queries, external.hits) == (40, 40)


def test_only_what_is_not_cached_is_pulled():  # the real log: nixl_consumer_local_hit
    engine = Engine()
    engine.add("w", outputs=1)
    engine.step()
    engine.step()
    engine.connector.pull("d", REMOTE)
    engine.add("d")
    (read,) = engine.step().transfers.reads
    assert read.pairs == [(13, 3)]
    external = engine.scheduler.statistics.external_prefix_cache
    assert (external.queries, external.hits) == (48, 8)


@pytest.mark.parametrize("is_allocated", [False, True])
def test_an_abort_at_the_reader_lets_the_other_engine_know(is_allocated):
    engine = Engine()
    engine.connector.pull("d", REMOTE)
    engine.add("d")
    reads = engine.step().transfers.reads if is_allocated else []
    engine.scheduler.abort("d")
    reads += engine.step(received=["d"] if is_allocated else []).transfers.reads
    assert [(read.remote, bool(read.blocks)) for read in reads] == [(REMOTE, is_allocated)]
    assert engine.state == (19, 0)
    assert not engine.connector.awaited
    engine.step()
    assert not engine.scheduler.has_requests()


def test_an_aborted_prefill_keeps_nothing():
    engine = Engine()
    engine.connector.keep("p")
    engine.add("p")
    engine.step()
    engine.scheduler.abort("p")
    assert engine.connector.take_computed("p") is None
    assert engine.step().transfers.kept == []
    assert engine.state[0] == 19


LOGS = Path(__file__).parent / "nixl_logs"
"""Of the real vLLM 0.33.0: a scheduler with the real ``NixlConnector``, on a CPU."""


def logged(engine, **reported):
    """A step in the words of the handed logs."""
    step = engine.step(**reported)
    free, hashed = engine.state
    scheduler = engine.scheduler
    return {
        "scheduled": [list(each) for each in scheduled(step)],
        "new": [[one.request.request_id, one.num_hit_tokens, one.block_tables] for one in step.admitted],
        "running": [[one.request_id, one.num_computed_tokens] for one in scheduler.running],
        "kv_holding_waiting": [
            [one.request_id, "WAITING_FOR_REMOTE_KVS", one.num_computed_tokens] for one in scheduler.waiting.holding
        ],
        "free": free,
        "hashed_blocks": hashed,
        "known_requests": sorted([*scheduler.live, *scheduler.kept]),
    }


@pytest.mark.parametrize(("case", "most"), [("nixl_producer", 3), ("nixl_consumer", 5), ("nixl_consumer_local_hit", 7)])
def test_every_step_is_that_of_the_real_scheduler_and_connector(case, most):
    _, *lines = map(json.loads, (LOGS / f"{case}.jsonl").read_text("utf-8").splitlines())
    assert len(lines) == most
    engine = Engine()
    for line in lines:
        for name in line["known_requests"] + [each[0] for each in line["finished"]]:
            if name not in engine.scheduler.live and name not in engine.seen:
                engine.seen.add(name)
                if name == "d":
                    engine.connector.pull(name, REMOTE)
                if name == "cmpl-p":
                    engine.connector.keep(name)
                engine.add(name, outputs=4 if name == "d" else 1)
        reported = line.get("reported", {})
        got = logged(engine, received=reported.get("finished_recving", []), sent=reported.get("finished_sending", []))
        assert got == {key: line[key] for key in got}
