"""Random workloads for parity cases: shared prefixes, conversations, ends of all kinds, and what interrupts them."""

from __future__ import annotations

import random
from typing import Any

Line = dict[str, Any]


def random_workload(rng: random.Random, config: dict[str, Any]) -> list[Line]:
    """Requests and operations, in the oracle's format, for a configuration."""
    max_model_len = config["max_model_len"]
    num_requests = rng.randint(8, 16 if max_model_len > 512 else 40)
    num_prefixes = rng.randint(1, 5)
    longest_prefix = rng.choice((max_model_len // 8, max_model_len // 2))
    prefix_tokens = [rng.randint(1, max(1, longest_prefix)) for _ in range(num_prefixes)]
    vocabulary = rng.choice((3, 32000))
    salts = rng.choice(((None,), (None, "a", "bob")))
    adapters = (None, "sql", "chat", "code") if config.get("max_loras") else (None,)
    outputs = rng.choice(("plain", "plain", "conversations", "ends early", "twins"))
    typical_output = min(200, rng.choice((20, max_model_len // 4, max_model_len // 2, max_model_len)))
    longest_tail = max_model_len // rng.choice((3, 16))
    per_step = rng.choice((1, 2, 4, 40))
    arrivals = rng.choice((None, None, None, (0.0, 0.5, 1.25, 7.0)))
    lines: list[Line] = []
    step = 0
    for index in range(num_requests):
        prefix = rng.randrange(num_prefixes)
        parts = [{"seed": f"s{prefix}", "len": prefix_tokens[prefix]}]
        tail = rng.randint(0, longest_tail)
        if tail and rng.random() < 0.8:
            parts.append({"seed": f"u{rng.randrange(6) if outputs == 'twins' else index}", "len": tail})
        if outputs == "conversations" and lines and rng.random() < 0.7:
            parts = _next_turn(rng, rng.choice(lines), f"u{index}", longest_tail)
        if _num_tokens(parts) >= max_model_len:
            parts = [{"seed": f"u{index}", "len": max_model_len - 1}]
        line: Line = {
            "id": f"r{index}",
            "arrival_step": step,
            "prompt_parts": parts,
            "output_len": rng.choice((1, 2, *[rng.randint(1, max(1, typical_output)) for _ in range(4)])),
        }
        if config["policy"] == "priority":
            line["priority"] = rng.randint(-1, 3)
        if arrivals:
            line["arrival_time"] = rng.choice(arrivals) + rng.choice((0, step))
        if (salt := rng.choice(salts)) is not None:
            line["cache_salt"] = salt
        if (adapter := rng.choice(adapters)) is not None:
            line["lora"] = adapter
        if outputs == "twins":
            line["output_token_ids"] = [7] * line["output_len"]
        elif outputs != "plain":
            line["output_token_ids"] = [rng.randrange(vocabulary) for _ in range(line["output_len"])]
        if outputs == "ends early":
            end = rng.choice(line["output_token_ids"])
            line |= {"eos_token_id": end} if rng.random() < 0.5 else {"stop_token_ids": [end]}
        lines.append(line)
        if (index + 1) % per_step == 0:
            step += rng.choice((0, 1, 1, 2, rng.randint(0, 40)))
    return lines + _random_operations(rng, lines, step)


def _num_tokens(parts: list[Line]) -> int:
    return sum(part["len"] if "len" in part else len(part["token_ids"]) for part in parts)


def _next_turn(rng: random.Random, turn: Line, seed: str, longest_tail: int) -> list[Line]:
    """A prompt that begins with all, or most, of an earlier turn's prompt and output."""
    said = turn["output_token_ids"]
    parts = [*turn["prompt_parts"], {"token_ids": said[: rng.choice((len(said), len(said), len(said) // 2))]}]
    return [part for part in [*parts, {"seed": seed, "len": rng.randint(0, longest_tail)}] if _num_tokens([part])]


def _random_operations(rng: random.Random, lines: list[Line], last_step: int) -> list[Line]:
    """Aborts, ids that are used anew once their request is gone, and resets of the prefix cache."""
    operations: list[Line] = []
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 6)):
            operations.append({"op": "abort", "id": rng.choice(lines)["id"], "step": rng.randint(0, last_step + 30)})
    if rng.random() < 0.15:
        for line in rng.sample(lines, rng.randint(1, 3)):
            step = line["arrival_step"] + rng.randint(1, 30)
            operations.append({"op": "abort", "id": line["id"], "step": step})
            operations.append(line | {"arrival_step": step + 3})  # what was in flight is forgotten by then
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            operations.append(
                {
                    "op": "reset_prefix_cache",
                    "step": rng.randint(0, last_step + 60),
                    "reset_running_requests": rng.random() < 0.6,
                }
            )
    return operations
