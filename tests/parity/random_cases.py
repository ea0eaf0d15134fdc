"""Random parity cases: configurations and workloads drawn to put the pool and the queues under pressure."""

from __future__ import annotations

import math
import random
from typing import Any

Case = tuple[dict[str, Any], list[dict[str, Any]]]


def random_case(seed: int) -> Case:
    """Configuration and workload number ``seed``, in the oracle's format."""
    rng = random.Random(f"parity/{seed}")
    block_size = rng.choice((1, 2, 3, 4, 5, 8, 16, 16, 32))
    max_model_len = rng.choice((64, 128, 200, 512))
    blocks_of_longest = -(-max_model_len // block_size)
    is_tight = rng.random() < 0.6
    num_blocks = 1 + max(2, int(blocks_of_longest * rng.uniform(1.0, 1.3 if is_tight else 3.0)))
    config: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_model_len": max_model_len,
        "max_num_seqs": rng.choice((1, 2, 4, 8, 8, 16, 16, 64)),
        "max_num_batched_tokens": rng.choice((64, 100, 256, 1024)),
        "enable_prefix_caching": rng.random() < 0.9,
        "policy": rng.choice(("fcfs", "fcfs", "priority")),
        "async_scheduling": rng.random() < 0.5,
        "watermark": rng.choice((0.0, 0.0, 0.05, 0.3)),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "long_prefill_token_threshold": rng.choice((0, 0, 0, 8, 24, 70)),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.2,
        "arrival_time": rng.choice(("unique", "step")),
        "kv_events": rng.random() < 0.4,
        "log_free_queue": "full",
        "log_tables": rng.random() < 0.3,
        "log_hashes": rng.random() < 0.3,
        "hash_algo": rng.choice(("sha256", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor")),
        "stall_steps": 4,
        "max_steps": 4000,
    }
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["max_num_seqs"])
    config["long_prefill_token_threshold"] = min(config["long_prefill_token_threshold"], max_model_len)
    if config["hash_algo"].startswith("xxhash") or rng.random() < 0.2:
        config["none_hash_seed"] = str(rng.randrange(100))
    if rng.random() < 0.15:
        config["enable_chunked_prefill"] = False
        config["long_prefill_token_threshold"] = 0
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], max_model_len)
    if rng.random() < 0.15:
        config["max_num_scheduled_tokens"] = rng.randint(8, config["max_num_batched_tokens"])
    if rng.random() < 0.15:
        config["max_num_active_seqs"] = rng.randint(1, config["max_num_seqs"])
    if rng.random() < 0.15:
        config["prefill_schedule_interval"] = rng.randint(2, 5)
    if rng.random() < 0.2:
        config["max_loras"] = rng.randint(1, 3)
    if rng.random() < 0.6:
        rng.choice((_draw_groups, _draw_groups, _draw_state_groups))(rng, config)
    _draw_speculation(random.Random(f"parity/speculation/{seed}"), config)
    return config, _random_workload(rng, config)


def _draw_speculation(rng: random.Random, config: dict[str, Any]) -> None:
    """Let a third of the cases speculate; a random stream of its own leaves the others as they were."""
    if rng.random() < 0.67 or any(group["type"] == "mamba" for group in config.get("groups", ())):
        return
    methods = ["ngram", "suffix", "draft_model", "dflash"]
    if not _has_parts(config):
        methods += ["eagle", "eagle", "eagle3", "mtp"]
    config["spec_method"] = rng.choice(methods)
    config["num_speculative_tokens"] = rng.randint(1, 5)
    config["disable_lookahead_block_hashes"] = rng.random() < 0.5
    config["disable_eagle_block_drop"] = rng.random() < 0.2
    if config.get("groups"):
        config["groups"] = [dict(group, eagle=rng.random() < 0.5) for group in config["groups"]]
        if rng.random() < 0.4:  # several kinds of windows, some of which look at one token only
            for group in config["groups"]:
                if group["type"] == "sliding_window":
                    group["sliding_window"] = rng.choice((1, 2, rng.randint(1, config["max_model_len"])))


def _has_parts(config: dict[str, Any]) -> bool:
    """Whether a hash covers less than a block of full attention."""
    groups = config.get("groups", ())
    hash_tokens = config.get("prefix_match_unit") or math.gcd(*(group["block_size"] for group in groups))
    return any(group["type"] == "full" and group["block_size"] > hash_tokens for group in groups)


def _draw_groups(rng: random.Random, config: dict[str, Any]) -> None:
    """Replace the one group of full attention by other kinds, of equal or different block sizes."""
    block_size = config["block_size"]
    sizes = rng.choice(((1,), (1,), (1, 2), (1, 3), (2, 3)))
    size = block_size * rng.choice((1, *sizes))
    groups: list[dict[str, Any]] = [{"type": "full", "block_size": size}] * rng.randint(0, 1)
    for _ in range(rng.randint(0 if groups else 1, 3)):
        if groups and rng.random() < 0.3:
            groups.append(dict(groups[-1]))
            continue
        window = rng.choice((2, block_size, block_size + 1, 3 * block_size, rng.randint(2, config["max_model_len"])))
        groups.append(
            {"type": "sliding_window", "sliding_window": window, "block_size": block_size * rng.choice(sizes)}
        )
    if rng.random() < 0.25:
        chunk = rng.choice((block_size, 3 * block_size, rng.randint(1, config["max_model_len"])))
        local = {"type": "chunked_local", "attention_chunk_size": chunk, "block_size": block_size}
        groups = [group | {"block_size": block_size} for group in groups[: rng.randint(0, 2)]] + [local]
    _set_groups(rng, config, groups)


def _draw_state_groups(rng: random.Random, config: dict[str, Any]) -> None:
    """State-space groups, alone or beside full attention and a window; all blocks are of one size, as vLLM has it."""
    block_size = config["block_size"]
    groups: list[dict[str, Any]] = [{"type": "mamba", "block_size": block_size}] * rng.choice((1, 1, 2, 3))
    if rng.random() < 0.8:
        groups += [{"type": "full", "block_size": block_size}]
    if rng.random() < 0.3:
        window = rng.choice((2, block_size, 3 * block_size, rng.randint(2, config["max_model_len"])))
        groups += [{"type": "sliding_window", "sliding_window": window, "block_size": block_size}]
    if not config["enable_prefix_caching"]:
        whole = {"block_size": config["max_model_len"], "mamba_cache_mode": "none"}
        groups = [group | whole if group["type"] == "mamba" else group for group in groups]
    _set_groups(rng, config, groups)


def _set_groups(rng: random.Random, config: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Use ``groups`` in random order, with a retention interval and a pool that suit them."""
    rng.shuffle(groups)
    config["groups"] = groups
    has_states = any(group["type"] == "mamba" for group in groups)
    if len(groups) > 1 and not has_states and rng.random() < 0.2:
        divisor = math.gcd(*(group["block_size"] for group in groups))
        config["prefix_match_unit"] = rng.choice([unit for unit in range(1, divisor + 1) if divisor % unit == 0])
    is_sparse = any(group["type"] in ("sliding_window", "mamba") for group in groups)
    config["prefix_cache_retention_interval"] = rng.choice((0, 0, None, "m")) if is_sparse else 0
    if config["prefix_cache_retention_interval"] == "m":
        unit = math.lcm(*(group["block_size"] for group in groups))
        config["prefix_cache_retention_interval"] = unit * rng.randint(1, 4)
    blocks_of_longest = sum(-(-config["max_model_len"] // group["block_size"]) for group in groups)
    config["num_blocks"] = 1 + int((blocks_of_longest + len(groups)) * rng.uniform(0.6, 2.0)) + len(groups)


def _random_workload(rng: random.Random, config: dict[str, Any]) -> list[dict[str, Any]]:
    max_model_len = config["max_model_len"]
    num_requests = rng.randint(8, 40)
    num_prefixes = rng.randint(1, 5)
    longest_prefix = rng.choice((max_model_len // 8, max_model_len // 2))
    prefix_tokens = [rng.randint(1, longest_prefix) for _ in range(num_prefixes)]
    vocabulary = rng.choice((3, 32000))
    salts = rng.choice(((None,), (None, "a", "bob")))
    adapters = (None, "sql", "chat", "code") if config.get("max_loras") else (None,)
    ends_early = rng.random() < 0.3
    typical_output = rng.choice((20, max_model_len // 4, max_model_len // 2, max_model_len))
    longest_tail = rng.choice((max_model_len // 16, max_model_len // 3))
    per_step = rng.choice((1, 2, 4, 40))
    twins = rng.random() < 0.25
    lines: list[dict[str, Any]] = []
    step = 0
    for index in range(num_requests):
        prefix = rng.randrange(num_prefixes)
        tail = rng.randint(0, longest_tail)
        parts = [{"seed": f"s{prefix}", "len": prefix_tokens[prefix]}]
        if tail and rng.random() < 0.8:
            parts.append({"seed": f"u{rng.randrange(6) if twins else index}", "len": tail})
        prompt_tokens = sum(part["len"] for part in parts)
        if prompt_tokens >= max_model_len:
            parts = [{"seed": f"u{index}", "len": max_model_len - 1}]
        line: dict[str, Any] = {
            "id": f"r{index}",
            "arrival_step": step,
            "prompt_parts": parts,
            "output_len": rng.choice((1, 2, *[rng.randint(1, typical_output) for _ in range(4)])),
        }
        if config["policy"] == "priority":
            line["priority"] = rng.randint(-1, 3)
        if (salt := rng.choice(salts)) is not None:
            line["cache_salt"] = salt
        if (adapter := rng.choice(adapters)) is not None:
            line["lora"] = adapter
        if ends_early:
            line["output_token_ids"] = [rng.randrange(vocabulary) for _ in range(line["output_len"])]
            end = rng.choice(line["output_token_ids"])
            if rng.random() < 0.5:
                line["eos_token_id"] = end
            else:
                line["stop_token_ids"] = [end]
        elif twins:
            line["output_token_ids"] = [7] * line["output_len"]
        lines.append(line)
        if (index + 1) % per_step == 0:
            step += rng.choice((0, 1, 1, 2, rng.randint(0, 40)))
    return lines + _random_operations(rng, num_requests, step)


def _random_operations(rng: random.Random, num_requests: int, last_step: int) -> list[dict[str, Any]]:
    operations: list[dict[str, Any]] = []
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 6)):
            name = f"r{rng.randrange(num_requests)}"
            operations.append({"op": "abort", "id": name, "step": rng.randint(0, last_step + 30)})
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
