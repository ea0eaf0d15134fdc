"""What kinds of cases there are among random ones, and what happened in them: so that a comparison can be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Config = dict[str, Any]


def kinds(config: Config, lines: Iterable[dict[str, Any]]) -> set[str]:
    """The kinds that a case, given as a complete configuration and a workload, belongs to."""
    groups = config["groups"] or [{"type": "full", "block_size": config["block_size"]}]
    found = {
        "async": config["async_scheduling"],
        "priority": config["policy"] == "priority",
        "no prefix caching": not config["enable_prefix_caching"],
        "1 to 63 tokens a step": config["max_num_batched_tokens"] < 64,
        "scheduled above batched": (config["max_num_scheduled_tokens"] or 0) > config["max_num_batched_tokens"],
        "blocks of 64 to 1,000": config["block_size"] >= 64,
        "max_model_len 9 to 48": config["max_model_len"] <= 48,
        "watermark above 0.3": config["watermark"] > 0.3,
        "adaptive threshold": config["long_prefill_token_threshold_adaptive"]
        and config["long_prefill_token_threshold"] > 0,
        "prefill interval": config["prefill_schedule_interval"] > 1,
        "prefill interval of ranks": config["common_prefill_interval"] > 1,
        "LoRA": bool(config["max_loras"]),
        "images": config["encoder_cache_size"] > 0,
        "KV connectors": bool(config["connector"]),
        "whole images": config["encoder_cache_size"] > 0 and config["disable_chunked_mm_input"],
    }
    threshold, block_size = config["long_prefill_token_threshold"], config["block_size"]
    found |= {
        "threshold 1 or 2": threshold in (1, 2),
        "threshold block - 1, block, block + 1": threshold > 2 and abs(threshold - block_size) <= 1,
    }
    found |= _speculation(config, groups) | _groups(config, groups) | _workload(lines)
    return {kind for kind, is_one in found.items() if is_one}


def _speculation(config: Config, groups: list[Config]) -> dict[str, bool]:
    num_drafts, method = config["num_speculative_tokens"], config["spec_method"]
    has_states = any(group["type"] == "mamba" for group in groups)
    has_large_full = any(
        group["type"] == "full" and other["block_size"] < group["block_size"] for group in groups for other in groups
    )
    modules = config["num_nextn_predict_layers"] if method == "mtp" else 1
    return {
        f"drafter {method}": num_drafts > 0,
        "5 to 7 drafts": num_drafts >= 5,
        "several MTP modules": min(num_drafts, modules) > 1,
        "speculation and states": num_drafts > 0 and has_states,
        "eagle or mtp and larger full attention": num_drafts > 0
        and method in ("eagle", "eagle3", "mtp")
        and has_large_full,
    }


def _groups(config: Config, groups: list[Config]) -> dict[str, bool]:
    types = {group["type"] for group in groups}
    states = [group for group in groups if group["type"] == "mamba"]
    sizes = [group["block_size"] for group in groups]
    unit = config["prefix_match_unit"] or min(sizes)
    caches = config["enable_prefix_caching"]
    interval = config["prefix_cache_retention_interval"]
    return {
        "windows": "sliding_window" in types,
        "chunked local attention": "chunked_local" in types,
        "states": bool(states),
        "states with checkpoints": caches and any(state.get("num_prefill_checkpoint_blocks") for state in states),
        "states in blocks larger than a hash": caches and any(state["block_size"] > unit for state in states),
        "blocks of different sizes": len(set(sizes)) > 1,
        "retention interval None": interval is None,
        "retention interval above 5 blocks": bool(interval) and interval > 5 * max(sizes),
    }


def _workload(lines: Iterable[dict[str, Any]]) -> dict[str, bool]:
    requests = [line for line in lines if line.get("op", "add") == "add"]
    ids = [line["id"] for line in requests]
    return {
        "explicit arrivals": any("arrival_time" in line for line in requests),
        "conversations": any("token_ids" in part for line in requests for part in line.get("prompt_parts", ())),
        "ids used anew": len(set(ids)) < len(ids),
        "salts": any(line.get("cache_salt") for line in requests),
    }


def events(log: Iterable[dict[str, Any]]) -> Counter[str]:
    """What happened in a case."""
    counts: Counter[str] = Counter()
    for record in log:
        counts["preemptions"] += len(record.get("preempted", ()))
        counts["admissions"] += len(record.get("admitted", ()))
        counts["admissions with a hit"] += sum(1 for one in record.get("admitted", ()) if one["num_computed_tokens"])
        counts["blocks copied for hits on parts"] += len(record.get("cow_copies", ()))
        counts["stops before the length"] += sum(1 for _, reason in record.get("finished", ()) if reason == "stop")
        counts["drafts verified"] += sum(len(drafts) for _, drafts in record.get("spec", ()))
        encoder = record.get("encoder", {"encodes": (), "dropped": ()})
        counts["images encoded"] += sum(len(positions) for _, positions in encoder["encodes"])
        counts["images dropped"] += len(encoder["dropped"])
        counts["loads over"] += len(record.get("transfers", {}).get("received", ()))
        counts["loads or steps that lost blocks"] += bool(record.get("transfers", {}).get("invalid_blocks"))
        counts["requests kept after their end"] += len(record.get("transfers", {}).get("sent", ()))
        counts["aborts"] += len(record.get("aborted", ()))
        counts["resets"] += "reset_prefix_cache" in record
        counts["stalled cases"] += bool(record.get("stalled"))
    return counts
