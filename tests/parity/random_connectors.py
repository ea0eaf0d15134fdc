"""Random parity cases with a KV connector: plans under pressure, together with all else that random cases draw."""

from __future__ import annotations

import random
from typing import Any


def connect(seed: int, config: dict[str, Any], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give a random case a connector, and plans to most of its requests; return its lines.

    It keeps one cache group of full attention, no images, and the first request of each id. What a step itself was to
    load fails only under synchronous scheduling and without drafts: the fake model does not know the rest.
    """
    rng = random.Random(f"parity/connectors/{seed}")
    if config.pop("groups", None):
        longest = -(-config["max_model_len"] // config["block_size"])
        config["num_blocks"] = 1 + max(2, int(longest * rng.uniform(1.0, 2.5)))
    for name in ("prefix_match_unit", "prefix_cache_retention_interval", "encoder_cache_size"):
        config.pop(name, None)
    config["connector"] = {
        "role": rng.choice(("kv_both", "kv_consumer", "kv_producer")),
        "kv_load_failure_policy": rng.choice(("fail", "recompute")),
    }
    config["stall_steps"] = 8
    steps_may_fail = not config["async_scheduling"] and not config.get("num_speculative_tokens")
    habits = _Habits(rng, steps_may_fail)
    kept, seen = [], set()
    for line in lines:
        line.pop("images", None)
        line.pop("reset_running_requests", None)  # vLLM ends with an error where a load is under way
        if line.get("op", "add") == "add":
            if line["id"] in seen:
                continue
            seen.add(line["id"])
            if rng.random() < 0.7:
                line["plan"] = habits.plan(_num_prompt_tokens(line))
        kept.append(line)
    return kept


def _num_prompt_tokens(line: dict[str, Any]) -> int:
    if "prompt_token_ids" in line:
        return len(line["prompt_token_ids"])
    if "prompt_parts" in line:
        return sum(len(part["token_ids"]) if "token_ids" in part else part["len"] for part in line["prompt_parts"])
    return line["prompt_len"]


class _Habits:
    """What the connector of one case tends to do."""

    def __init__(self, rng: random.Random, steps_may_fail: bool) -> None:
        self._rng = rng
        self._steps_may_fail = steps_may_fail
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
        if rng.random() < self._fails and (is_async or self._steps_may_fail):
            if is_async and rng.random() < 0.3:
                plan["failed"] = True
            else:
                plan["invalid"] = [rng.randrange(8) for _ in range(rng.randint(1, 3))]
        return plan
