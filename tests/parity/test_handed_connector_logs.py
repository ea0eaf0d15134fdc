"""Logs of the real scheduler with another mock connector, made by hand with explicit reports, against our engine."""

import json
from pathlib import Path

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.connected_scheduler import ConnectedScheduler
from kvtwin.engine.connectors.connector import Connector, RemoteMatch, Transfers
from kvtwin.engine.request import Request
from tests.parity.oracle import vllm_oracle

LOGS = Path(__file__).resolve().parents[3] / "shared" / "oracle" / "connectors" / "golden"
BASE = {"num_blocks": 20, "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 512}


class HandedConnector(Connector):
    """Has ``remote`` tokens of a request in all, asked for ``defer`` times in vain, once unless it says otherwise."""

    def __init__(self):
        self.plans, self.calls = {}, []

    def match(self, request, num_local_tokens):
        plan = self.plans.get(request.request_id, {})
        number = max(0, plan.get("remote", 0) - num_local_tokens)
        if plan.get("defer", 0) > 0:
            plan["defer"] -= 1
            number = None
        self.calls.append(["match", request.request_id, num_local_tokens, number])
        return None if number is None else RemoteMatch(number, number > 0 and plan.get("is_async", True))

    def allocated(self, request, block_tables, num_remote_tokens):
        self.calls.append(["alloc", request.request_id, [list(table) for table in block_tables], num_remote_tokens])
        plan = self.plans.get(request.request_id, {})
        if num_remote_tokens and plan.get("once", True):
            plan["remote"] = 0

    def finished(self, request, block_tables):
        is_kept = self.plans.get(request.request_id, {}).get("is_kept", False)
        self.calls.append(["finished", request.request_id, is_kept])
        return is_kept


def add(name, seed, num_tokens, output=4, **plan):
    return name, seed, num_tokens, output, plan


ONE_LOAD = {0: [add("a", 1, 80, remote=80)]}
SYNC_LOAD = {0: [add("a", 1, 100, remote=64, is_async=False)]}
WHOLE_PROMPT = {0: [add("a", 1, 64, remote=64)]}
CASES = {
    "async_full_prompt": ({}, WHOLE_PROMPT, {}),
    "async_partial_with_other": ({}, {0: [add("a", 1, 100, remote=72), add("b", 2, 40)]}, {}),
    "sync_load": ({}, SYNC_LOAD, {}),
    "defer_none": ({}, {0: [add("a", 1, 40, remote=32, defer=2), add("b", 2, 40)]}, {}),
    "producer_delay_free": (
        {"num_blocks": 8},
        {0: [add("p", 1, 40, 1, is_kept=True)], 2: [add("q", 2, 80, 1)]},
        {},
    ),
    "abort_while_loading": ({}, WHOLE_PROMPT, {1: "a"}),
    "abort_after_recv": ({}, WHOLE_PROMPT, {2: "a"}),
    "async_invalid_recompute": ({"recomputes": True}, ONE_LOAD, {}),
    "async_invalid_first_recompute": ({"recomputes": True}, ONE_LOAD, {}),
    "async_invalid_fail": ({}, ONE_LOAD, {}),
    "sync_invalid_recompute": ({"recomputes": True}, SYNC_LOAD, {}),
    "sync_invalid_fail": ({}, SYNC_LOAD, {}),
    "local_plus_remote": ({}, {0: [add("w", 1, 40, 1)], 2: [add("a", 1, 100, remote=96)]}, {}),
    "reservation": (
        {"num_blocks": 12},
        {0: [add("a", 1, 128, remote=32), add("b", 2, 64, remote=64), add("c", 3, 48, remote=48)]},
        {},
    ),
    "loads_take_no_slot": ({"max_num_seqs": 1}, {0: [add("a", 1, 64, remote=64), add("b", 2, 40, 6)]}, {}),
    "pressure_on_running": ({"num_blocks": 8}, {0: [add("b", 2, 30, 40), add("a", 1, 64, remote=64)]}, {}),
    "pressure_on_running2": ({"num_blocks": 8}, {0: [add("b", 2, 46, 40), add("a", 1, 64, remote=64)]}, {}),
    "two_loads_same_prompt": ({}, {0: [add("a", 1, 64, remote=64), add("b", 1, 64, remote=64)]}, {}),
    "preempt_then_remote": (
        {"num_blocks": 9},
        {0: [add("a", 1, 60, 30), add("b", 2, 60, 30, remote=60, once=False)]},
        {},
    ),
}
"""Settings, requests by the step of their arrival, and aborts by step. What is reported, and when, the logs say."""


class Run:
    def __init__(self, settings):
        settings = BASE | settings
        recomputes = settings.pop("recomputes", False)
        self.connector = HandedConnector()
        config = EngineConfig(**settings, async_scheduling=False, vllm_strict=True)
        self.scheduler = ConnectedScheduler(config, self.connector, recomputes_failed_loads=recomputes)

    def add(self, name, seed, num_tokens, output, plan):
        self.connector.plans[name] = dict(plan)
        tokens = vllm_oracle.expand_prompt({"prompt_len": num_tokens, "seed": seed}, vllm_oracle.DEFAULT_VOCAB)
        self.scheduler.add_request(Request(name, num_tokens, output, TokenContent(self.scheduler.keys, tokens)))

    def step(self, reported):
        """One step, with the fields of the logs."""
        scheduler, pool = self.scheduler, self.scheduler.kv_cache.pool
        step = scheduler.schedule()
        num_free = pool.num_free_blocks
        received, sent = reported.get("finished_recving", []), reported.get("finished_sending", [])
        scheduler.report(Transfers(received, sent, set(reported.get("invalid", ()))))
        scheduler.update(step, [[7] if samples else [] for samples in step.samples])
        calls, self.connector.calls = self.connector.calls, []
        return {
            "scheduled": [[one.request_id, count] for one, count in zip(step.requests, step.num_tokens, strict=True)],
            "admitted": sorted([one.request.request_id, one.num_hit_tokens, one.block_tables] for one in step.admitted),
            "preempted": sorted(request.request_id for request in step.preempted),
            "calls": calls,
            "free_after_schedule": num_free,
            "finished": [ended for ended in map(_ended, scheduler.take_ended()) if ended[1] != "abort"],
            "running": [[request.request_id, request.num_computed_tokens] for request in scheduler.running],
            "waiting": self._waiting(scheduler.waiting.others),
            "kv_holding_waiting": self._waiting(scheduler.waiting.holding),
            "free": pool.num_free_blocks,
            "hashed_blocks": pool.num_hashed_blocks,
            "known_requests": sorted([*scheduler.live, *scheduler.kept]),
        }

    def _waiting(self, queue):
        names = {"WAITING_FOR_REMOTE_KV": "WAITING_FOR_REMOTE_KVS"}
        return [[one.request_id, names.get(one.status.name, one.status.name), one.num_computed_tokens] for one in queue]


def _ended(request):
    return [request.request_id, str(request.finish_reason)]


def expected(record):
    finished = [one[:2] for one in record["finished"]]
    calls = [[call[0], call[1], call[4]] if call[0] == "finished" else call for call in record["calls"]]
    admitted = sorted(record["new"] + record["resumed"])
    return record | {
        "admitted": admitted,
        "preempted": record.get("preempted", []),
        "calls": calls,
        "finished": finished,
    }


@pytest.mark.skipif(not LOGS.exists(), reason="the logs are not beside this checkout")
@pytest.mark.parametrize("name", CASES)
def test_the_logs_agree(name):
    settings, arrivals, aborts = CASES[name]
    run = Run(settings)
    records = [json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text("utf-8").splitlines()][1:]
    assert records
    for number, record in enumerate(records):
        for arrival in arrivals.get(number, ()):
            run.add(*arrival)
        if number in aborts:
            run.scheduler.abort(aborts[number])
        ours = run.step(record.get("reported", {}))
        theirs = expected(record)
        assert ours == {field: theirs[field] for field in ours}, number
