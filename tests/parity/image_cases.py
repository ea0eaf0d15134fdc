"""Small parity cases on images, one for each rule; their logs are in ``golden_images``.

Made anew by the real scheduler, with the oracle's Python (see ask_oracle.py)::

    $ORACLE_PYTHON -m tests.parity.image_cases
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Line = dict[str, Any]
FOLDER = Path(__file__).parent / "golden_images"
BASE: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 100,
    "max_model_len": 200,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "encoder_cache_size": 100,
    "log_free_queue": "full",
    "stall_steps": 4,
}

PRIORITIES: dict[str, Any] = {
    "policy": "priority",
    "scheduler_reserve_full_isl": False,
    "long_prefill_token_threshold": 8,
}


def request(
    name: str, prompt_tokens: int, *images: tuple[Any, ...], step: int = 0, output: int = 8, **more: Any
) -> Line:
    """A request whose prompt nobody shares, unless ``seed`` says so; images are hash, offset, length, text."""
    keys = ("hash", "offset_tokens", "length_tokens", "text_positions")
    seed = more.pop("seed", name)
    return {
        "id": name,
        "arrival_step": step,
        "prompt_parts": [{"seed": seed, "len": prompt_tokens}],
        "output_len": output,
        "images": [dict(zip(keys, image, strict=False)) for image in images],
        **more,
    }


def _image_after_image(number: int, length: int, gap: int = 0) -> list[tuple[str, int, int]]:
    return [(f"i{index}", index * (length + gap), length) for index in range(number)]


CASES: dict[str, tuple[dict[str, Any], list[Line]]] = {
    "budget": (
        {"max_num_encoder_input_tokens": 20},
        [request(name, 20, (name, 4, 10), output=20) for name in "abcd"],
    ),
    "default_budget": (
        {"encoder_cache_size": 90},
        [request(name, 30, (name, 2, 10 + 9 * index), output=20) for index, name in enumerate("abc")]
        + [request("large", 100, ("large", 5, 80), step=3)],
    ),
    "room": (
        {"encoder_cache_size": 20, "max_num_batched_tokens": 16},
        [request(name, 30, (name, 4, 12), output=20) for name in "abc"],
    ),
    "room_for_several_of_a_prompt": (
        {"encoder_cache_size": 20},
        [request("a", 50, ("x", 2, 12), ("y", 20, 12), ("z", 34, 8), output=20)],
    ),
    "eviction_order": (
        {"encoder_cache_size": 30},
        [request(name, 14, (name, 2, 10), step=3 * index) for index, name in enumerate("abc")]
        + [request("again", 20, ("a", 5, 10), step=12), request("d", 14, ("d", 2, 10), step=15)]
        + [request(name.upper(), 14, (name, 1, 10), step=18 + 3 * index) for index, name in enumerate("bca")],
    ),
    "shared": (
        {"encoder_cache_size": 12, "max_num_batched_tokens": 20},
        [request(name, 24, ("logo", 3 + index, 12), step=index, output=20) for index, name in enumerate("abcd")],
    ),
    "repeated_in_a_prompt": (
        {"encoder_cache_size": 18, "max_num_batched_tokens": 16},
        [
            request("a", 60, ("x", 0, 10), ("x", 12, 10), ("y", 30, 8), ("x", 45, 10), output=20),
            request("b", 40, ("y", 4, 8), ("x", 20, 10), step=1),
        ],
    ),
    "longer_than_a_chunk": (
        {"encoder_cache_size": 45, "max_num_batched_tokens": 16},
        [request("a", 60, ("x", 6, 45), output=20), request("b", 50, ("y", 0, 40), output=10, step=1)],
    ),
    "hit_inside": (
        {"encoder_cache_size": 16, "long_prefill_token_threshold": 4},
        [
            request("a", 22, ("x", 6, 16), seed="s", output=2),
            request("b", 30, ("y", 6, 16), output=2, step=10),
            request("c", 30, ("z", 2, 12), output=20, step=20),
            request("d", 22, ("x", 6, 16), seed="s", output=4, step=20),
            request("text", 12, output=4, step=20),
        ],
    ),
    "passed_over": (
        {"encoder_cache_size": 16, "long_prefill_token_threshold": 4},
        [
            request("holder", 40, ("h", 0, 16), output=10),
            *(request(name, 20, (name, 0, 12), step=1) for name in "ab"),
            request("text", 6, step=1, output=20),
            request("late", 20, ("c", 3, 12), step=2),
        ],
    ),
    "text_among_embeddings": (
        {"encoder_cache_size": 16, "max_num_batched_tokens": 8},
        [
            request("a", 40, ("x", 0, 20, list(range(10))), ("y", 22, 12, [5, 11]), output=10),
            request("b", 30, ("x", 7, 20, list(range(10))), output=10, step=2),
            request("c", 20, ("t", 3, 6, list(range(6))), output=10, step=2),
        ],
    ),
    "whole": (
        {"disable_chunked_mm_input": True, "max_num_batched_tokens": 24},
        [
            request("a", 60, ("x", 10, 20), ("y", 31, 24), output=20),
            request("b", 40, ("z", 0, 20), output=12, step=1),
            request("c", 30, ("w", 12, 16), output=12, step=2),
        ],
    ),
    "whole_behind_a_hit": (
        {"disable_chunked_mm_input": True, "max_num_batched_tokens": 24},
        [request(name, 26, ("x", 6, 20), seed="s", step=6 * index) for index, name in enumerate("ab")]
        + [request(name, 40, ("x", 6, 20), ("y", 27, 10), step=12 + 3 * index) for index, name in enumerate("cd")],
    ),
    "async_end_of_the_prompt": (
        {"async_scheduling": True, "encoder_cache_size": 24, "max_num_batched_tokens": 16},
        [request(name, 12 + 4 * index, (name, 2, 10 + 4 * index), step=index) for index, name in enumerate("abcd")]
        + [request("e", 30, ("e", 0, 24), step=9)],
    ),
    "async_chunks_in_flight": (
        {"async_scheduling": True, "encoder_cache_size": 20, "max_num_batched_tokens": 10},
        [request(name, 45, (name, 2, 18), (name + "2", 24, 20), step=index) for index, name in enumerate("abc")],
    ),
    "preempted": (
        {
            "num_blocks": 15,
            "encoder_cache_size": 40,
            "scheduler_reserve_full_isl": False,
            "long_prefill_token_threshold": 4,
        },
        [request("a", 16, ("x", 2, 12), output=30), request("b", 40, ("y", 3, 36), output=4, step=3)],
    ),
    "victim_in_the_step": (
        PRIORITIES | {"num_blocks": 16, "max_num_encoder_input_tokens": 10},
        [
            request("text", 1, priority=4, output=20),
            request("victim", 40, ("v", 24, 10), priority=5),
            request("high", 7, priority=0, step=1),
            request("next", 40, ("n", 16, 10), priority=1, step=1),
        ],
    ),
    "victim_of_a_request_with_an_image": (
        PRIORITIES | {"num_blocks": 18, "max_num_encoder_input_tokens": 30},
        [
            request("text", 1, priority=4, output=20),
            request("victim", 40, ("v", 24, 10), priority=5),
            request("high", 40, ("h", 16, 10), priority=0, step=1),
            request("next", 40, ("n", 16, 15), priority=1, step=1),
        ],
    ),
    "evicted_and_encoded_again_in_a_step": (
        PRIORITIES | {"num_blocks": 13, "encoder_cache_size": 10},
        [
            request("first", 14, ("x", 2, 10), output=1),
            request("text", 1, priority=4, output=20, step=2),
            request("victim", 40, ("y", 24, 10), priority=5, step=2),
            request("high", 40, ("x", 16, 10), priority=0, step=3),
        ],
    ),
    "no_blocks_for_the_head": (
        {"num_blocks": 12, "encoder_cache_size": 24},
        [
            request("a", 20, ("x", 2, 12), output=20),
            request("b", 30, ("x", 2, 12), ("y", 15, 12), step=1, output=4),
            request("c", 8, ("z", 0, 6), step=2, output=4),
        ],
    ),
    "aborted": (
        {"encoder_cache_size": 40, "max_num_batched_tokens": 12, "async_scheduling": True},
        [request(name, 40, (name, 0, 20), ("x", 22, 16), step=index, output=20) for index, name in enumerate("abc")]
        + [{"op": "abort", "id": "a", "step": 2}, {"op": "abort", "id": "c", "step": 3}],
    ),
    "forced_reset": (
        {"encoder_cache_size": 26, "max_num_batched_tokens": 20, "async_scheduling": True},
        [request(name, 50, (name, 0, 12), (f"{name}2", 14, 12), (f"{name}3", 30, 14), output=10) for name in "ab"]
        + [{"op": "reset_prefix_cache", "step": step, "reset_running_requests": True} for step in (1, 3, 8)],
    ),
    "another_image_under_the_same_hash": (
        {},
        [
            request("a", 30, ("x", 2, 12), output=20),
            request("b", 30, ("y", 0, 4), ("x", 8, 13), output=4, step=2),
            request("c", 30, ("x", 3, 12), output=4, step=2),
            request("d", 30, ("w", 3, 6), ("w", 12, 7), output=4, step=4),
        ],
    ),
    "order_of_letting_go": (
        {"encoder_cache_size": 40, "max_num_batched_tokens": 9},
        [request("a", 60, *_image_after_image(20, 2, 1), output=18)],
    ),
    "order_of_letting_go_of_all": (
        {"num_blocks": 22, "encoder_cache_size": 40, "max_num_batched_tokens": 9},
        [
            request("a", 60, *_image_after_image(20, 2, 1), output=18),
            request("b", 60, *_image_after_image(20, 2, 1), step=8)
            | {"prompt_parts": [{"seed": "a", "len": 20}, {"seed": "b", "len": 40}]},
        ],
    ),
    "held_prefill": (
        {"prefill_schedule_interval": 3, "encoder_cache_size": 20, "max_num_batched_tokens": 12},
        [request("text", 6, output=30)]
        + [request(name, 30, (name, 3, 9), (name + "2", 14, 14), step=1 + index) for index, name in enumerate("abc")],
    ),
    "passed_over_is_no_backlog": (
        {"prefill_schedule_interval": 3, "encoder_cache_size": 16, "long_prefill_token_threshold": 4},
        [request("text", 4, output=40), request("holder", 40, ("h", 0, 16), output=6, step=1)]
        + [request(name, 20, (name, 0, 12), step=2 + index) for index, name in enumerate("ab")],
    ),
    "hashes_that_look_ahead": (
        {
            "spec_method": "eagle",
            "num_speculative_tokens": 2,
            "kv_events": True,
            "log_hashes": True,
            "encoder_cache_size": 24,
        },
        [
            request(name, 30, (image, 8, 8), ("y", 16 + index, 6), seed="s", step=6 * index)
            for index, (name, image) in enumerate(zip("abcd", "xxzx", strict=True))
        ],
    ),
    "read_ahead": (
        {"spec_method": "eagle", "num_speculative_tokens": 2, "encoder_cache_size": 20, "max_num_batched_tokens": 16},
        [
            request(name, 50, (name, 16 - index, 12), (name + "2", 32, 12), step=index, output=40)
            for index, name in enumerate("abc")
        ],
    ),
    "read_ahead_of_dflash": (
        {
            "spec_method": "dflash",
            "num_speculative_tokens": 2,
            "max_num_batched_tokens": 40,
            "long_prefill_token_threshold": 16,
            "encoder_cache_size": 20,
            "disable_chunked_mm_input": True,
        },
        [request(name, 60, (name, 16, 12), (name + "2", 44, 12), output=40) for name in "ab"],
    ),
    "read_ahead_of_several_modules": (
        {
            "spec_method": "mtp",
            "num_speculative_tokens": 4,
            "num_nextn_predict_layers": 4,
            "encoder_cache_size": 20,
            "max_num_batched_tokens": 16,
        },
        [
            request(name, 50, (name, 18 - index, 12), (name + "2", 34, 12), step=index, output=40)
            for index, name in enumerate("abc")
        ],
    ),
    "image_within_the_read_ahead": (
        {
            "spec_method": "mtp",
            "num_speculative_tokens": 4,
            "num_nextn_predict_layers": 4,
            "max_num_encoder_input_tokens": 10,
        },
        [request("a", 20, ("x", 2, 10), output=40), request("b", 30, ("y", 28, 2), output=80)],
    ),
    "whole_and_read_ahead": (
        {
            "spec_method": "mtp",
            "num_speculative_tokens": 3,
            "num_nextn_predict_layers": 3,
            "max_num_batched_tokens": 24,
            "disable_chunked_mm_input": True,
        },
        [
            request(name, 60, (name, 10 + index, 16), (name + "2", 30, 14), step=index, output=40)
            for index, name in enumerate("abc")
        ],
    ),
    "events_of_larger_blocks": (
        {
            "kv_events": True,
            "log_hashes": True,
            "groups": [
                {"type": "full", "block_size": 8},
                {"type": "sliding_window", "sliding_window": 9, "block_size": 4},
            ],
            "prefix_cache_retention_interval": None,
        },
        [
            request(name, 40, ("x", 3, 7), ("y", 20, 9), seed="s", step=4 * index, output=12)
            for index, name in enumerate("abc")
        ],
    ),
    "states": (
        {
            "groups": [{"type": "mamba", "block_size": 8}, {"type": "full", "block_size": 8}],
            "block_size": 8,
            "encoder_cache_size": 20,
            "max_num_batched_tokens": 20,
        },
        [
            request(name, 50, ("x", 5, 12), (name, 20, 16), ("z", 38, 9), seed="s", step=2 * index)
            for index, name in enumerate("abcd")
        ],
    ),
}


def main() -> None:
    """Write all cases with the real scheduler's answers."""
    from tests.parity.ask_oracle import write_case

    for name, (config, lines) in CASES.items():
        write_case(FOLDER, name, BASE | config, lines, packed=".gz")
        print(name)


if __name__ == "__main__":
    main()
