"""Random parity cases: configurations drawn to put the pool, the queues and every limit under pressure."""

from __future__ import annotations

import math
import random
from typing import Any

from random_connectors import connect, offload
from random_images import draw_images
from random_workloads import random_workload

Config = dict[str, Any]
Group = dict[str, Any]

ATTENTION = ("full", "sliding_window", "chunked_local")


def random_case(seed: int) -> tuple[Config, list[dict[str, Any]]]:
    """Configuration and workload number ``seed``, in the oracle's format."""
    rng = random.Random(f"parity/{seed}")
    config = _draw_sizes(rng) | {
        "enable_prefix_caching": rng.random() < 0.9,
        "policy": rng.choice(("fcfs", "fcfs", "priority")),
        "async_scheduling": rng.random() < 0.5,
        "watermark": rng.choice((0.0, 0.0, 0.0, 0.05, 0.3, 0.6, 0.95)),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "arrival_time": rng.choice(("unique", "step")),
        "kv_events": rng.random() < 0.4,
        "log_free_queue": "full",
        "log_tables": rng.random() < 0.3,
        "log_hashes": rng.random() < 0.3,
        "hash_algo": rng.choice(("sha256", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor")),
        "stall_steps": 4,
        "max_steps": 3000,
    }
    if config["hash_algo"].startswith("xxhash") or rng.random() < 0.2:
        config["none_hash_seed"] = str(rng.randrange(100))
    _draw_speculation(rng, config)
    if config["block_size"] < config.get("num_speculative_tokens", 0):
        config.pop("num_nextn_predict_layers", None)
    if rng.random() < 0.65:
        rng.choice((_draw_attention_groups, _draw_state_groups))(rng, config)
    _draw_limits(rng, config)
    lines = random_workload(rng, config)
    draw_images(random.Random(f"parity/images/{seed}"), config, lines)
    return config, lines


def random_connected_case(seed: int) -> tuple[Config, list[dict[str, Any]]]:
    """Case number ``seed`` with a KV connector."""
    config, lines = random_case(seed)
    return config, connect(seed, config, lines)


def random_offloaded_case(seed: int) -> tuple[Config, list[dict[str, Any]]]:
    """Case number ``seed`` with native offloading."""
    config, lines = random_case(seed)
    return config, offload(seed, config, lines)


def _draw_sizes(rng: random.Random) -> Config:
    """Block size, pool, length and batch: usual ones, tiny ones, large blocks, or a few tokens per step."""
    regime = rng.choice(("usual", "usual", "tiny", "large blocks", "few tokens"))
    block_size = rng.choice((1, 2, 3, 4, 5, 8, 16, 16, 32))
    max_model_len = rng.choice((64, 128, 200, 512))
    max_num_seqs = rng.choice((1, 2, 4, 8, 8, 16, 16, 64))
    batched_tokens = max(max_num_seqs, rng.choice((64, 100, 256, 1024)))
    if regime == "tiny":
        block_size, max_model_len = rng.choice((1, 2, 3, 4, 8)), rng.randint(9, 48)
    elif regime == "large blocks":
        block_size = rng.randint(64, 1000)
        max_model_len = int(block_size * rng.uniform(0.9, 3.5))
        batched_tokens = max(max_num_seqs, rng.choice((100, block_size - 1, block_size, block_size + 1, 2048)))
    elif regime == "few tokens":
        batched_tokens = rng.randint(1, 63)
        max_num_seqs = min(max_num_seqs, batched_tokens)
        max_model_len = rng.choice((16, 40, 64, 128))
    blocks_of_longest = -(-max_model_len // block_size)
    largest = 1.3 if rng.random() < 0.6 else 3.0
    return {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_blocks": 1 + max(2, int(blocks_of_longest * rng.uniform(1.0, largest))),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": batched_tokens,
    }


def _draw_limits(rng: random.Random, config: Config) -> None:
    """Limits on chunks and seats, around those of blocks and drafts."""
    block_size, batched_tokens = config["block_size"], config["max_num_batched_tokens"]
    thresholds = (0, 0, 0, 0, 1, 2, block_size - 1, block_size, block_size + 1, 8, 24, 70)
    threshold = min(rng.choice(thresholds), config["max_model_len"])
    config["long_prefill_token_threshold_adaptive"] = rng.random() < 0.3
    if rng.random() < 0.15:
        config["enable_chunked_prefill"] = False
        threshold = 0
        config["max_num_batched_tokens"] = max(batched_tokens, config["max_model_len"])
    if not _caches_states(config) and threshold <= config.get("num_speculative_tokens", 0) and rng.random() < 0.9:
        threshold = 0  # vLLM may end with an assertion
    config["long_prefill_token_threshold"] = threshold
    if rng.random() < 0.25:
        config["max_num_scheduled_tokens"] = rng.randint(1, 2 * batched_tokens)
    if rng.random() < 0.15:
        config["max_num_active_seqs"] = rng.randint(1, config["max_num_seqs"])
    if rng.random() < 0.15:
        name = "common_prefill_interval" if rng.random() < 0.3 else "prefill_schedule_interval"
        config[name] = rng.randint(2, 5)
    if rng.random() < 0.2:
        config["max_loras"] = rng.randint(1, 3)


def _draw_speculation(rng: random.Random, config: Config) -> None:
    if rng.random() < 0.6:
        return
    methods = ("ngram", "ngram_gpu", "suffix", "medusa", "draft_model", "dflash", "eagle", "eagle3", "mtp", "mtp")
    config["spec_method"] = rng.choice(methods)
    config["num_speculative_tokens"] = rng.randint(1, rng.choice((3, 7)))
    if config["spec_method"] == "mtp":
        config["num_nextn_predict_layers"] = rng.choice((1, 2, 3, 7))
    config["disable_lookahead_block_hashes"] = rng.random() < 0.5
    config["disable_eagle_block_drop"] = rng.random() < 0.2
    config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["num_speculative_tokens"] + 2)


def _caches_states(config: Config) -> bool:
    has_states = any(group["type"] == "mamba" for group in config.get("groups", ()))
    return has_states and config["enable_prefix_caching"]


def _draw_attention_groups(rng: random.Random, config: Config) -> None:
    """Replace the one group of full attention by several kinds, of equal or different block sizes."""
    block_size, longest = config["block_size"], config["max_model_len"]
    sizes = rng.choice(((1,), (1,), (1, 2), (1, 3), (2, 3)))
    size = block_size * rng.choice((1, *sizes))
    has_full = rng.random() < 0.5 or config.get("num_nextn_predict_layers", 1) > 1
    groups: list[Group] = [{"type": "full", "block_size": size}] * has_full
    for _ in range(rng.randint(0 if groups else 1, 3)):
        if groups and rng.random() < 0.3:
            groups.append(dict(groups[-1]))
            continue
        window = rng.choice((1, 2, block_size, block_size + 1, 3 * block_size, rng.randint(1, longest)))
        groups.append(
            {"type": "sliding_window", "sliding_window": window, "block_size": block_size * rng.choice(sizes)}
        )
    if rng.random() < 0.2:
        chunk = rng.choice((block_size, 3 * block_size, rng.randint(1, longest)))
        local = {"type": "chunked_local", "attention_chunk_size": chunk, "block_size": block_size}
        groups = [group | {"block_size": block_size} for group in groups[: rng.randint(0, 2)]] + [local]
        config["disable_lookahead_block_hashes"] = False  # vLLM cannot drop blocks of chunks
    _set_groups(rng, config, groups)


def _draw_state_groups(rng: random.Random, config: Config) -> None:
    """State-space groups, alone or beside full attention and windows; half of them leave prefill checkpoints."""
    block_size = config["block_size"]
    sizes = rng.choice(((1,), (1,), (1, 2, 3), (1, 2, 4), (2,)))
    states: Group = {
        "type": "mamba",
        "block_size": block_size * rng.choice(sizes),
        "num_speculative_blocks": config.get("num_speculative_tokens", 0),
    }
    if rng.random() < (0.5 if config.get("num_speculative_tokens", 0) < states["block_size"] else 0.05):
        states["num_prefill_checkpoint_blocks"] = 1
        states["prefill_checkpoint_alignment"] = rng.choice((1, 1, block_size, 16))
    groups = [states] * rng.choice((1, 1, 2, 3))
    if rng.random() < 0.8 or config.get("num_nextn_predict_layers", 1) > 1:
        groups += [{"type": "full", "block_size": block_size * rng.choice(sizes)}]
    if rng.random() < 0.25:
        window = rng.choice((2, block_size, 3 * block_size, rng.randint(2, config["max_model_len"])))
        size = block_size * rng.choice((1, rng.choice(sizes)))
        groups += [{"type": "sliding_window", "sliding_window": window, "block_size": size}]
    if not config["enable_prefix_caching"]:
        whole = {"block_size": config["max_model_len"], "mamba_cache_mode": "none"}
        groups = [group | whole if group["type"] == "mamba" else group for group in groups]
    _set_groups(rng, config, groups)


def _set_groups(rng: random.Random, config: Config, groups: list[Group]) -> None:
    """Use ``groups`` in random order, with a hash size, a retention interval and a pool that suit them."""
    if config.get("num_speculative_tokens"):
        groups = [dict(group, eagle=rng.random() < 0.5) for group in groups]
    rng.shuffle(groups)
    config["groups"] = groups
    divisor = math.gcd(*(group["block_size"] for group in groups))
    has_full = any(group["type"] == "full" for group in groups)
    unit = math.lcm(*(group["block_size"] for group in groups))
    if (not has_full or unit < config.get("num_speculative_tokens", 0)) and rng.random() < 0.9:
        config.pop("num_nextn_predict_layers", None)  # vLLM may not start, or end with an error
    has_states = any(group["type"] == "mamba" for group in groups)
    if len(groups) > 1 and rng.random() < (0.5 if has_states else 0.2):
        divisors = [part for part in range(1, divisor + 1) if divisor % part == 0]
        config["prefix_match_unit"] = rng.choice((divisor, rng.choice(divisors)))
    is_sparse = any(group["type"] in ("sliding_window", "mamba") for group in groups)
    config["prefix_cache_retention_interval"] = rng.choice((0, 0, None, "m")) if is_sparse else 0
    if config["prefix_cache_retention_interval"] == "m":
        config["prefix_cache_retention_interval"] = unit * rng.randint(1, rng.choice((4, 20)))
    num_beside = sum(1 + group.get("num_speculative_blocks", 0) for group in groups)
    blocks_of_longest = sum(-(-config["max_model_len"] // group["block_size"]) for group in groups)
    config["num_blocks"] = 1 + int((blocks_of_longest + num_beside) * rng.uniform(0.6, 2.0)) + num_beside
