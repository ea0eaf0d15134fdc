"""Let vLLM's own scheduler decide requests and print what that took, as JSON; for the oracle's Python.

Only the time inside vLLM counts: requests with their hashes, ``schedule`` and ``update_from_output``.
"""

import json
import sys
import time
from pathlib import Path


def main(workload: str, num_blocks: int) -> None:
    """Decide the requests of a file that `of_kvtwin.py` wrote, and then fill and empty a block pool."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "parity/oracle"))
    import vllm_oracle

    spent = {"s": 0.0}

    def timed(function):
        def call(*args, **keywords):
            before_s = time.process_time()
            try:
                return function(*args, **keywords)
            finally:
                spent["s"] += time.process_time() - before_s

        return call

    rows = json.loads(Path(workload).read_text())
    config = {"num_blocks": num_blocks, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    config |= {
        "max_model_len": min(131_072, 16 * (num_blocks - 1)),
        "log_free_queue": "none",
        "async_scheduling": True,
        "max_steps": 10**9,
    }
    oracle = vllm_oracle.Oracle(config, rows)
    oracle.log_state = lambda rec: None

    def only_emitted(rec, so):
        oracle.preempted_log.clear()
        for new in so.scheduled_new_reqs:
            oracle.emitted[new.req_id] = oracle.sched.requests[new.req_id].num_output_tokens

    oracle.log_schedule = only_emitted
    for name in ("schedule", "update_from_output", "add_request"):
        setattr(oracle.sched, name, timed(getattr(oracle.sched, name)))
    oracle.V.Request = timed(oracle.V.Request)
    steps = oracle.run(lambda rec: None)["steps"]
    facts = {"simulation_cpu_s": spent["s"], "cpu_s": time.process_time(), "requests": len(rows), "steps": steps}
    print(json.dumps(facts | {"pool_us_per_block": _pool_us()}))


def _pool_us(num_blocks: int = 20_000) -> float:
    """Microseconds per block that vLLM's BlockPool takes to hand blocks out and take them back, 64 at a time."""
    from vllm.v1.core.block_pool import BlockPool

    pool = BlockPool(num_blocks, True, 16)
    before_s = time.process_time()
    for _ in range(3):
        held = [pool.get_new_blocks(64) for _ in range((num_blocks - 1) // 64)]
        for blocks in held:
            pool.free_blocks(reversed(blocks))
    return 1e6 * (time.process_time() - before_s) / (3 * 64 * len(held))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
