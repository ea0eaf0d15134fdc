"""Small parity cases on KV connectors, one for each rule; their logs are in ``golden_connectors``.

Made anew by the real scheduler, with the oracle's Python (see ask_oracle.py)::

    $ORACLE_PYTHON -m tests.parity.connector_cases
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden_connectors"
BASE: dict[str, Any] = {
    "block_size": 16,
    "num_blocks": 20,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "max_model_len": 512,
    "log_free_queue": "full",
    "log_tables": True,
    "log_hashes": True,
    "kv_events": True,
    "connector": {"role": "kv_both", "kv_load_failure_policy": "fail"},
}

RECOMPUTE = {"connector": {"role": "kv_both", "kv_load_failure_policy": "recompute"}}
PRODUCER = {"connector": {"role": "kv_producer", "kv_load_failure_policy": "fail"}}


def add(name: str, num_tokens: int, *, seed: str = "", output: int = 4, step: int = 0, **plan: Any) -> dict[str, Any]:
    """A request whose prompt is that of ``seed``, its name unless it is said; what is more is its plan."""
    line = {"id": name, "prompt_len": num_tokens, "seed": seed or name, "output_len": output, "arrival_step": step}
    return line | ({"plan": plan} if plan else {})


def abort(name: str, step: int) -> dict[str, Any]:
    return {"op": "abort", "id": name, "step": step}


CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "async_full_prompt": ({}, [add("a", 64, remote_tokens=64, delay=2)]),
    "async_partial_with_other": ({}, [add("a", 100, remote_tokens=72, delay=2), add("b", 40)]),
    "sync_load": ({}, [add("a", 100, remote_tokens=64, is_async=False)]),
    "ask_again": ({}, [add("a", 40, remote_tokens=32, defer=2, delay=1), add("b", 40)]),
    "producer_keeps": (
        PRODUCER | {"num_blocks": 8},
        [add("p", 40, output=1, keeps=4), add("q", 80, output=1, step=2)],
    ),
    "abort_while_loading": ({}, [add("a", 64, remote_tokens=64, delay=4), abort("a", 2), add("b", 20, step=3)]),
    "abort_after_load": (
        {"max_num_seqs": 1},
        [add("b", 40, output=9), add("a", 64, remote_tokens=64, delay=1), abort("a", 4)],
    ),
    "bad_block_recompute": (RECOMPUTE, [add("a", 80, remote_tokens=80, invalid=[2])]),
    "first_block_bad_recompute": (RECOMPUTE, [add("a", 80, remote_tokens=80, invalid=[0])]),
    "all_failed_recompute": (RECOMPUTE, [add("a", 80, remote_tokens=80, failed=True, again=True)]),
    "bad_block_fail": ({}, [add("a", 80, remote_tokens=80, invalid=[2]), add("b", 30)]),
    "all_failed_fail": ({}, [add("a", 80, remote_tokens=80, failed=True), add("b", 30)]),
    "bad_block_of_a_step_recompute": (RECOMPUTE, [add("a", 100, remote_tokens=64, is_async=False, invalid=[1])]),
    "bad_block_of_a_step_fail": (
        {},
        [add("a", 100, remote_tokens=64, is_async=False, invalid=[1]), add("b", 30)],
    ),
    "local_and_remote": (
        {},
        [add("w", 40, seed="s", output=1), add("a", 100, seed="s", step=2, remote_tokens=96, delay=1)],
    ),
    "promised_blocks": (
        {"num_blocks": 12},
        [
            add("a", 128, remote_tokens=32, delay=2),
            add("b", 64, remote_tokens=64, delay=1),
            add("c", 48, remote_tokens=48, delay=1),
        ],
    ),
    "chunks_are_promised_blocks": (
        {"num_blocks": 12, "long_prefill_token_threshold": 32},
        [add("c", 128), add("b", 80, remote_tokens=80, delay=1)],
    ),
    "loads_take_no_seat": ({"max_num_seqs": 1}, [add("a", 64, remote_tokens=64, delay=2), add("b", 40, output=6)]),
    "pressure_beside_a_load": (
        {"num_blocks": 8},
        [add("b", 46, output=40), add("a", 64, remote_tokens=64, delay=7)],
    ),
    "two_loads_of_one_prompt": (
        {},
        [add("a", 64, seed="s", remote_tokens=64, delay=1), add("b", 64, seed="s", remote_tokens=64, delay=3)],
    ),
    "frees_wait_for_steps": (
        {"async_scheduling": True, "num_blocks": 12},
        [add("a", 40, output=9), abort("a", 2), add("b", 100, step=2)],
    ),
    "frees_of_a_producer": (
        PRODUCER | {"async_scheduling": True, "num_blocks": 12},
        [add("a", 40, output=9), abort("a", 2), add("b", 100, step=2)],
    ),
    "victims_wait_for_steps": (
        {"async_scheduling": True, "num_blocks": 6},
        [add("a", 40, output=60), add("b", 24, output=60)],
    ),
    "preempted_and_loaded": (
        {"num_blocks": 9},
        [add("a", 60, output=30), add("b", 60, output=30, remote_tokens=60, delay=2, again=True)],
    ),
    "drafts_and_loads": (
        {"num_speculative_tokens": 2, "spec_method": "eagle", "async_scheduling": True},
        [add("a", 60, seed="s"), add("b", 80, seed="s", step=2, remote_tokens=80, delay=1)],
    ),
    "windows_and_loads": (
        {"groups": [{"type": "sliding_window", "sliding_window": 40}, {"type": "full"}], "num_blocks": 40},
        [add("w", 90, seed="s", output=2), add("a", 150, seed="s", step=4, remote_tokens=130, delay=2)],
    ),
    "window_of_one_token": (
        {"groups": [{"type": "sliding_window", "sliding_window": 1}, {"type": "full"}], "num_blocks": 40},
        [add("a", 72, remote_tokens=50, is_async=False), add("b", 40, remote_tokens=40)],
    ),
    "windows_of_an_ended_request": (
        PRODUCER | {"groups": [{"type": "sliding_window", "sliding_window": 17}, {"type": "full"}]},
        [add("p", 60, output=9, keeps=3), add("q", 90, output=2, step=9)],
    ),
    "all_failed_in_groups": (
        RECOMPUTE | {"groups": [{"type": "sliding_window", "sliding_window": 40}, {"type": "full"}], "num_blocks": 40},
        [add("a", 80, remote_tokens=80, failed=True, delay=2), add("b", 30)],
    ),
    "drafts_beyond_a_stop": (
        PRODUCER | {"num_speculative_tokens": 3, "spec_method": "ngram"},
        [
            add("p", 40, output=20, keeps=3)
            | {"output_token_ids": [*range(10), 7, *range(11, 30)], "stop_token_ids": [7]}
        ],
    ),
    "bad_block_of_a_step_in_flight": (
        RECOMPUTE | {"async_scheduling": True},
        [add("a", 60, output=9, remote_tokens=48, is_async=False, invalid=[0]), add("b", 30, output=9)],
    ),
    "bad_block_beside_an_image": (
        RECOMPUTE | {"encoder_cache_size": 64},
        [
            add("a", 90, remote_tokens=48, is_async=False, invalid=[1])
            | {"images": [{"hash": "i", "offset_tokens": 20, "length_tokens": 40}]},
            add("b", 30),
        ],
    ),
}


def main() -> None:
    """Write all cases with the real scheduler's answers."""
    from tests.parity.ask_oracle import write_case

    FOLDER.mkdir(exist_ok=True)
    for name, (config, lines) in CASES.items():
        write_case(FOLDER, name, BASE | config, lines, packed=".gz")
        print(name)


if __name__ == "__main__":
    main()
