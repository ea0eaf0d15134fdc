"""Ask the real scheduler for its block metrics (run with the oracle's Python; see ask_oracle.py):

    $ORACLE_PYTHON -m tests.parity.record_block_metrics > tests/parity/block_metrics.json

Every block is sampled, and a step takes a second of a clock of our own. Per case, in order: lifetime, idle time and
reuse gaps in seconds of every block that lost its content.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.parity.oracle import vllm_oracle

GOLDEN = Path(__file__).parent / "golden"
CASES = ("eviction_order", "duplicates", "async", "hybrid_full_swa")


def events_of(name: str) -> list[Any]:
    """What vLLM reports of one golden case."""
    case = vllm_oracle.read_config(str(GOLDEN / f"{name}.config.json"))
    oracle = vllm_oracle.Oracle(case, vllm_oracle.read_workload(str(GOLDEN / f"{name}.workload.jsonl.gz")))
    scheduler, number, events = oracle.sched, 0, []
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def scheduled(*arguments: Any, **named: Any) -> Any:
        nonlocal number
        number += 1
        return schedule(*arguments, **named)

    def updated(*arguments: Any, **named: Any) -> Any:
        outputs = update(*arguments, **named)
        for output in outputs.values():
            if output.scheduler_stats is not None:
                for event in output.scheduler_stats.kv_cache_eviction_events:
                    gaps = [round(gap) for gap in event.reuse_gaps_seconds]
                    events.append([round(event.lifetime_seconds), round(event.idle_seconds), gaps])
        return outputs

    scheduler.schedule, scheduler.update_from_output = scheduled, updated
    real_clock, time.monotonic_ns = time.monotonic_ns, lambda: number * 10**9
    try:
        oracle.run(lambda record: None)
    finally:
        time.monotonic_ns = real_clock
    return events


def main() -> None:
    """Print the events of all cases."""
    vllm = vllm_oracle.import_vllm()
    from vllm.config import ObservabilityConfig

    real = vllm.VllmConfig
    metrics = ObservabilityConfig(kv_cache_metrics=True, kv_cache_metrics_sample=1.0)
    vllm.VllmConfig = lambda **settings: real(observability_config=metrics, **settings)
    print(json.dumps({name: events_of(name) for name in CASES}, separators=(",", ":")))


if __name__ == "__main__":
    main()
