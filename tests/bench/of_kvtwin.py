"""Replay a file with kvtwin and print what that took, as JSON: a process of its own, for `tests.bench`."""

import argparse
import json
import time

import numpy as np

from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replay import replay


def main() -> None:
    """Replay, and with ``--vllm FILE`` write the requests as `of_vllm.py` takes them, by the steps they arrive in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("num_blocks", type=int)
    parser.add_argument("--rate-scale", type=float, default=1.0)
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--vllm")
    given = parser.parse_args()
    options = ReplayOptions(
        trace=given.trace,
        model="Llama-3.1-8B",
        gpu="h200",
        num_gpu_blocks_override=given.num_blocks,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=min(131_072, 16 * (given.num_blocks - 1)),
        rate_scale=given.rate_scale,
        num_prompts=given.num_prompts,
    )
    run = replay(options)
    requests = run.recorder.requests
    num_tokens = np.asarray(requests.prompt_tokens) + np.asarray(requests.output_tokens) - 1
    facts = {
        "simulation_cpu_s": run.machine["cpu_s"],
        "cpu_s": time.process_time(),
        "decided_by": run.machine["decided_by"],
        "requests": run.summary["completed"],
        "steps": run.summary["steps"],
        "blocks": int((-(-num_tokens // 16)).sum()),
        "preemptions": run.summary["num_preemptions"],
    }
    if given.vllm:
        _write_for_vllm(given.vllm, options, run)
    print(json.dumps(facts))


def _write_for_vllm(path, options, run) -> None:
    from pathlib import Path

    from kvtwin.experiments.runs.loads import opened_load

    _, load = opened_load(options, None)
    steps = np.asarray(run.recorder.steps.scheduled_ns)
    rows = []
    for record in load:
        row = {"id": record.request_id, "output_len": max(1, record.output_tokens)}
        row["arrival_step"] = int(np.searchsorted(steps, record.arrival_ns))
        if record.token_ids is not None:
            row["prompt_parts"] = [{"token_ids": list(record.token_ids)}]
        elif record.hash_ids is not None:
            ends = [min(end, record.prompt_tokens) for end in record.id_ends]
            lengths = np.diff([0, *ends]).tolist()
            row["prompt_parts"] = [
                {"seed": str(name), "len": length} for name, length in zip(record.hash_ids, lengths, strict=True)
            ]
        else:
            row |= {"prompt_len": record.prompt_tokens, "seed": f"r{record.request_id}"}
        rows.append(row)
    Path(path).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
