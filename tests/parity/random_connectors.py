"""Random parity cases with a KV connector: plans under pressure, together with all else that random cases draw."""

from __future__ import annotations

import random
from typing import Any


def connect(seed: int, config: dict[str, Any], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give a random case a connector, and plans to most of its requests; return its lines.

    It replaces groups of states by one of full attention, and keeps the first request of each id. Of what vLLM dies of,
    it leaves out drafters that read ahead beside chunked local attention, and drafts beside images.
    """
    rng = random.Random(f"parity/connectors/{seed}")
    has_states = any(group["type"] == "mamba" for group in config.get("groups") or ())
    if has_states:
        del config["groups"]
        longest = -(-config["max_model_len"] // config["block_size"])
        config["num_blocks"] = 1 + max(2, int(longest * rng.uniform(1.0, 2.5)))
        for name in ("prefix_match_unit", "prefix_cache_retention_interval"):
            config.pop(name, None)
    if any(group["type"] == "chunked_local" for group in config.get("groups") or ()):
        config.pop("num_speculative_tokens", None)
    if config.get("num_speculative_tokens"):
        config.pop("encoder_cache_size", None)
        for line in lines:
            line.pop("images", None)
    config["connector"] = {
        "role": rng.choice(("kv_both", "kv_consumer", "kv_producer")),
        "kv_load_failure_policy": rng.choice(("fail", "recompute")),
    }
    config["stall_steps"] = 8
    habits = _Habits(rng, has_one_group=len(config.get("groups") or [{}]) == 1)
    kept, seen = [], set()
    for line in lines:
        line.pop("reset_running_requests", None)  # vLLM ends with an error where a load is under way
        if line.get("op", "add") == "add":
            if line["id"] in seen:
                continue
            seen.add(line["id"])
            if rng.random() < 0.7:
                line["plan"] = habits.plan(_num_prompt_tokens(line))
        kept.append(line)
    return kept


def offload(seed: int, config: dict[str, Any], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give a random case native offloading, with a host of any size and transfers of any length; return its lines.

    Without KV events: vLLM publishes those of the host too, which are not modelled.
    """
    kept = connect(seed, config, lines)
    for line in kept:
        line.pop("plan", None)
        line.pop("images", None)
    rng = random.Random(f"parity/offloading/{seed}")
    longest = -(-config["max_model_len"] // config["block_size"])
    if config.pop("groups", None):
        config["num_blocks"] = 1 + max(2, int(longest * rng.uniform(1.0, 2.5)))
    for name in ("prefix_match_unit", "prefix_cache_retention_interval", "encoder_cache_size"):
        config.pop(name, None)
    config["connector"] = {
        "kind": "native",
        "num_chunks": max(1, int(longest * rng.choice((0.3, 1.0, 4.0, 20.0)))),
        "blocks_per_chunk": rng.choice((1, 1, 1, 2, 3)),
        "eviction_policy": rng.choice(("lru", "arc")),
        "store_threshold": rng.choice((0, 0, 0, 2, 3)),
        "max_tracker_size": rng.choice((4, 64_000)),
        "sync_load_budget_tokens": rng.choice((0, 0, 0, 64, 1024)),
        "offload_prompt_only": rng.random() < 0.8,
        "lags": [rng.randint(0, rng.choice((1, 2, 8))) for _ in range(7)],
    }
    config |= {"stall_steps": 16, "kv_events": False}
    return kept


def _num_prompt_tokens(line: dict[str, Any]) -> int:
    if "prompt_token_ids" in line:
        return len(line["prompt_token_ids"])
    if "prompt_parts" in line:
        return sum(len(part["token_ids"]) if "token_ids" in part else part["len"] for part in line["prompt_parts"])
    return line["prompt_len"]


class _Habits:
    """What the connector of one case tends to do."""

    def __init__(self, rng: random.Random, *, has_one_group: bool) -> None:
        self._rng = rng
        self._has_one_group = has_one_group
        self._async = rng.choice((0.0, 0.5, 1.0, 1.0))
        self._defers = rng.choice((0.0, 0.0, 0.3))
        self._fails = rng.choice((0.0, 0.0, 0.2, 0.5))
        self._keeps = rng.choice((0.0, 0.3, 1.0))
        self._longest_delay = rng.choice((1, 2, 6))

    def plan(self, num_prompt_tokens: int) -> dict[str, Any]:
        rng = self._rng
        is_async = rng.random() < self._async
        plan = {
            "remote_tokens": rng.choice((0, num_prompt_tokens, rng.randint(0, num_prompt_tokens))),
            "is_async": is_async,
            "defer": rng.randint(1, 4) if rng.random() < self._defers else 0,
            "delay": rng.randint(0, self._longest_delay),
            "keeps": rng.randint(1, 6) if rng.random() < self._keeps else 0,
            "again": rng.random() < 0.3,
        }
        if not is_async or num_prompt_tokens == 1:  # a step computes at least one token
            plan["remote_tokens"] = min(plan["remote_tokens"], num_prompt_tokens - 1)
        if rng.random() < self._fails:
            if is_async and (not self._has_one_group or rng.random() < 0.3):
                plan["failed"] = True
            elif self._has_one_group:
                plan["invalid"] = [rng.randrange(8) for _ in range(rng.randint(1, 3))]
        return plan
