"""Replicas that the compiled loop decides are those that the plain scheduler decides."""

import pytest

from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.engine.config import EngineConfig
from kvtwin.sim.compiled_engine import CompiledEngine
from kvtwin.workloads.request_record import RequestRecord
from tests.parts import slow_but
from tests.sim.cluster.compiled_clusters import Witness, difference, outcome
from tests.sim.compiled_cases import Case

pytestmark = pytest.mark.skipif(machine_code() is None, reason="nothing is compiled here")


@pytest.mark.parametrize("first", slow_but([0], range(0, 120, 20)))
def test_random_clusters(first):
    for seed in range(first, first + 20):
        router, differing, _ = difference(seed)
        assert differing == [], (seed, router)


@pytest.mark.parametrize("first", slow_but([0], range(0, 60, 4)))
def test_routers_see_the_same(first):
    """KV events and first tokens at the instant of each output, metrics as they were read."""
    for seed in range(first, first + 4):
        _, differing, _ = difference(seed, Witness.name)
        assert differing == [], seed


def simple_case():
    """A hundred requests on eight prefixes, as they come to a server with little memory; two of them are refused."""
    records = [
        RequestRecord(
            request_id=f"{index}",
            arrival_ns=40 * (index // 3) * (index % 7),
            prompt_tokens=64 + index % 5,
            output_tokens=0 if index in (20, 50) else 1 + index % 9,
            hash_ids=[index % 8, 100 + index % 3, 200 + index],
            hash_block_tokens=32,
        )
        for index in range(100)
    ]
    config = EngineConfig(num_blocks=40, max_num_seqs=4)
    return Case(config, sorted(records, key=lambda each: each.arrival_ns), {"step_ns": 100}, None, 0, True)


@pytest.mark.parametrize("router", ["round-robin", "session", "random", "prefix-aware"])
def test_routers_that_look_at_no_server_let_each_run_ahead(router, monkeypatch):
    """All that is recorded is the same, and the loops stop less often than requests arrive."""
    calls, run = [], CompiledEngine.run
    monkeypatch.setattr(CompiledEngine, "run", lambda *arguments: calls.append(0) or run(*arguments))
    case = simple_case()
    plain, compiled = (outcome(case, router, 3, compiled=each) for each in (False, True))
    assert [name for name in plain if plain[name] != compiled.get(name)] == []
    assert len(set(plain["most_cached_tokens"])) > 2
    assert 0 < len(calls) < len(case.records)
