"""The options of TensorRT-LLM, under the names of its LLM API and with its defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kvtwin.engine.trtllm.retention import DEFAULT_PRIORITY, RetentionConfig, TokenRange
from kvtwin.engine.trtllm.settings import (
    CAPACITY_SCHEDULER_POLICIES,
    CONTEXT_CHUNKING_POLICIES,
    DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY,
)
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Bytes, Choice, Number, Switch, Whole

_MILLISECOND_NS = 10**6
_RANGE_KEYS = {"token_start", "token_end", "priority", "duration_ms"}
_CONFIG_KEYS = {"token_range_retention_configs", "decode_retention_priority", "decode_duration_ms"}


@dataclass(frozen=True)
class PowerOfTwo:
    """A power of two above 1."""

    metavar: str = "TOKENS"

    def read(self, value: Any) -> int:
        number = Whole().read(value)
        if number is None or number < 2 or number & (number - 1):
            raise ValueError(f"expected a power of two above 1, got {value!r}")
        return number


@dataclass(frozen=True)
class Retention:
    """A ``KvCacheRetentionConfig`` as JSON, or as a mapping; kept as text."""

    metavar: str = "JSON"

    def read(self, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        retention_config(text)
        return text


def retention_config(text: str | None) -> RetentionConfig:
    """What the JSON text says; the defaults without one. ValueError: what it must be."""
    if text is None:
        return RetentionConfig()
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not set(given) <= _CONFIG_KEYS:
        raise ValueError(f"expected a JSON object of {', '.join(sorted(_CONFIG_KEYS))}, got {text[:60]!r}")
    ranges = given.get("token_range_retention_configs", [])
    if not isinstance(ranges, list) or not all(isinstance(each, dict) and set(each) <= _RANGE_KEYS for each in ranges):
        raise ValueError(f"expected a list of objects of {', '.join(sorted(_RANGE_KEYS))}, got {str(ranges)[:60]}")
    return RetentionConfig(
        tuple(
            TokenRange(
                _whole(each, "token_start", 0) or 0,
                _whole(each, "token_end", None),
                _whole(each, "priority", DEFAULT_PRIORITY) or 0,
                _duration_ns(each, "duration_ms"),
            )
            for each in ranges
        ),
        _whole(given, "decode_retention_priority", DEFAULT_PRIORITY) or 0,
        _duration_ns(given, "decode_duration_ms"),
    )


def _whole(given: dict[str, Any], key: str, default: int | None) -> int | None:
    value = given.get(key, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"expected a whole number as {key}, got {value!r}")
    return value


def _duration_ns(given: dict[str, Any], key: str) -> int | None:
    value = _whole(given, key, None)
    return None if value is None else value * _MILLISECOND_NS


@dataclass(frozen=True, kw_only=True)
class TrtllmCacheOptions:
    """TensorRT-LLM: cache (with --server trtllm)."""

    tokens_per_block: int = option(32, PowerOfTwo(), "tokens per block")
    free_gpu_memory_fraction: float = option(
        0.9, Number("SHARE", 0, 1, above=True), "share of the memory that is free after weights and activations"
    )
    max_tokens: int | None = option(None, Whole("TOKENS"), "most tokens in the cache, if fewer than fit")
    max_gpu_total_bytes: int | None = option(None, Bytes(), "most memory of the cache per GPU, such as 10GiB")
    host_cache_size: int | None = option(None, Bytes(), "host memory for blocks that the GPU hands out, per GPU")
    max_seq_len: int | None = option(
        None, Whole("TOKENS"), "longest request, prompt and output (default: the model's maximum)"
    )
    max_batch_size: int = option(2048, Whole("REQUESTS"), "most requests per step")
    max_num_tokens: int = option(8192, Whole("TOKENS"), "tokens per step")


@dataclass(frozen=True, kw_only=True)
class TrtllmOptions(TrtllmCacheOptions):
    """TensorRT-LLM: reuse and scheduling (with --server trtllm)."""

    enable_block_reuse: bool = option(True, Switch(), "reuse blocks of shared prefixes")
    enable_partial_reuse: bool = option(True, Switch(), "also reuse the leading tokens of a block, token by token")
    copy_on_partial_reuse: bool = option(
        True, Switch(), "copy such a block if others need it; else it is reused only if nobody does"
    )
    onboard_blocks: bool = option(True, Switch(), "bring blocks back from the host; without it none go there")
    secondary_offload_min_priority: int = option(
        DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY, Whole("PRIORITY", 0, 100), "blocks below it are dropped, not offloaded"
    )
    kv_cache_retention_config: str | None = option(
        None,
        Retention(),
        'priorities of all requests\' blocks, such as {"token_range_retention_configs": [{"token_start": 0, '
        '"token_end": 64, "priority": 80, "duration_ms": 1000}], "decode_retention_priority": 35}',
    )
    capacity_scheduler_policy: str = option(
        "GUARANTEED_NO_EVICT", Choice(CAPACITY_SCHEDULER_POLICIES), "who may start, and whether requests are paused"
    )
    enable_prefix_aware_scheduling: bool = option(
        True, Switch(), "let a prompt wait while another computes the first block that it misses"
    )
    context_chunking_policy: str = option(
        "FIRST_COME_FIRST_SERVED", Choice(CONTEXT_CHUNKING_POLICIES), "how prompts share a step's tokens, if chunked"
    )
