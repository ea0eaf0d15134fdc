"""Lifetimes, idle times and reuse gaps of blocks against those that the real vLLM 0.33.0 reports."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvtwin.engine.block_metrics import BlockMetrics
from tests.parity import case as parity_case
from tests.parity.case import CaseRun, read_jsonl

HERE = Path(__file__).parent
EVENTS = json.loads((HERE / "block_metrics.json").read_text())


@pytest.mark.parametrize("name", EVENTS)
def test_every_block_that_loses_its_content(monkeypatch, name):
    """All blocks are sampled, and a step takes a second."""
    events = []

    class Told(BlockMetrics):
        def _report(self, block):
            self.clear()
            super()._report(block)
            if sum(self.lifetimes.counts):
                events.append([self.lifetimes.sum_ns, self.idle_times.sum_ns, self.reuse_gaps.sum_ns])

    real = parity_case.engine_config
    measured = {"kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0}
    monkeypatch.setattr(parity_case, "engine_config", lambda *given: replace(real(*given), **measured))
    monkeypatch.setattr("kvtwin.engine.scheduler.BlockMetrics", Told)
    case = json.loads((HERE / "golden" / f"{name}.config.json").read_text())
    run = CaseRun(case, list(read_jsonl(HERE / "golden" / f"{name}.workload.jsonl.gz")))
    schedule, metrics = run.scheduler.schedule, run.scheduler.block_metrics

    def tick():
        metrics.now_ns += 10**9
        return schedule()

    monkeypatch.setattr(run.scheduler, "schedule", tick)
    for _ in run.run():
        pass
    in_seconds = [[time_ns / 10**9 for time_ns in event] for event in events]
    assert in_seconds == [[lifetime, idle, sum(gaps)] for lifetime, idle, gaps in EVENTS[name]]
    assert len(in_seconds) > 50
