"""Replay a file with Dynamo's mocker and print what that took, as JSON; for the Python that has `ai-dynamo-runtime`."""

import json
import sys
import time


def main(trace: str, num_blocks: int) -> None:
    """Replay with the limits that `of_kvtwin.py` has."""
    from dynamo._core import run_mocker_trace_replay

    engine = {"num_gpu_blocks": num_blocks, "block_size": 16, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    before_s = time.process_time()
    result = run_mocker_trace_replay(
        [trace], extra_engine_args={"engine": engine}, trace_block_size=512, capture_planner_details=False
    )
    after_s = time.process_time()
    facts = {"simulation_cpu_s": after_s - before_s, "cpu_s": after_s, "requests": result.summary["completed_requests"]}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
