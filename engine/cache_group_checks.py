"""Which cache groups, and settings of theirs, an engine can have: what vLLM would not start with is refused."""

from __future__ import annotations

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.cache_groups import KINDS
from kvtwin.engine.settings import EngineSettings


def check_cache_groups(config: EngineSettings) -> None:
    """Raise ValueError, naming the field and what it may be, for the first thing that does not fit."""
    for spec in config.group_specs:
        _check_spec(spec, config)
    _check_prefix_match_unit(config)
    _check_retention_interval(config)


def _check_spec(spec: CacheGroupSpec, config: EngineSettings) -> None:
    if spec.kind not in KINDS:
        raise ValueError(f"cache_groups: expected one of {', '.join(KINDS)}, got {spec.kind}")
    if spec.block_size < 1:
        raise ValueError(f"cache_groups: expected blocks of at least 1 token, got {spec.block_size}")
    if KINDS[spec.kind].has_window:
        if spec.window_tokens is None or spec.window_tokens < 1:
            raise ValueError(f"cache_groups: expected a {spec.kind} of at least 1 token, got {spec.window_tokens}")
        is_local = spec.kind == "chunked_local_attention"
        if is_local and not config.vllm_strict and spec.window_tokens % spec.block_size:
            raise ValueError(
                f"cache_groups: expected chunks of whole blocks ({spec.block_size} tokens), got {spec.window_tokens}: "
                "vLLM would count tokens as hit that no block holds"
            )
    elif spec.window_tokens is not None:
        raise ValueError(f"cache_groups: expected no window of {spec.kind}, got {spec.window_tokens}")
    if spec.kind == "chunked_local_attention" and config.enable_prefix_caching and config.drops_last_block(spec):
        raise ValueError(
            "speculation: expected lookahead block hashes beside chunked local attention, which cannot drop "
            "blocks, got disable_lookahead_block_hashes"
        )
    if not config.enable_prefix_caching:
        if spec.kind == "mamba" and spec.block_size != config.max_model_len:
            raise ValueError(
                "cache_groups: without prefix caching expected states in blocks of max_model_len "
                f"({config.max_model_len}) tokens, got {spec.block_size}"
            )
    elif spec.kind == "chunked_local_attention" and spec.block_size != config.common_block_tokens:
        raise ValueError(
            f"cache_groups: expected chunked local attention in blocks of {config.common_block_tokens} tokens, "
            f"a multiple of the other groups', got {spec.block_size}"
        )


def _check_prefix_match_unit(config: EngineSettings) -> None:
    hash_block_size, block_sizes = config.prefix_match_unit, [spec.block_size for spec in config.group_specs]
    if hash_block_size is None:
        return
    if hash_block_size < 1:
        raise ValueError(f"prefix_match_unit: expected at least 1, got {hash_block_size}")
    if not config.enable_prefix_caching:
        return
    if len(block_sizes) == 1 and hash_block_size != block_sizes[0]:
        raise ValueError(
            f"prefix_match_unit: with one cache group expected its block size {block_sizes[0]}, got {hash_block_size}"
        )
    if any(block_size % hash_block_size for block_size in block_sizes):
        sizes = ", ".join(map(str, sorted(set(block_sizes))))
        raise ValueError(
            f"prefix_match_unit: expected a divisor of the groups' block sizes {sizes}, got {hash_block_size}"
        )


def _check_retention_interval(config: EngineSettings) -> None:
    interval = config.prefix_cache_retention_interval
    if not interval:
        return
    if not any(spec.is_cached_sparsely for spec in config.group_specs):
        raise ValueError(
            f"prefix_cache_retention_interval: expected 0 or None without a sliding-window or state-space group, "
            f"got {interval}"
        )
    if interval < 0 or interval % config.common_block_tokens:
        raise ValueError(
            f"prefix_cache_retention_interval: expected a multiple of {config.common_block_tokens} tokens, "
            f"which are whole blocks of all groups, got {interval}"
        )
