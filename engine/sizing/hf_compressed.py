"""Compressed sparse attention (DeepSeek-V4): a short window, and latents that stand for several tokens each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_mlp import num_experts
from kvtwin.engine.sizing.layer_spec import LayerSpec
from kvtwin.engine.sizing.model_shape import ModelConfigError

BLOCK_TOKENS = 256
"""Of compressed latents; vLLM's kernels for them have no other."""

_WINDOW_BLOCK_TOKENS = 64
_LATENT_BYTES = 584
"""448 values of 8 bits with 8 scales, and 64 rotary values of 16 bits."""

_PAGE_ALIGNMENT_BYTES = 576
_STATE_BLOCK_TOKENS = {4: 4, 128: 8}
"""Tokens per block of the values that are not compressed yet, by the tokens that become one latent."""


def compressed_attention(fields: Fields, index: int, hidden: int, compress_ratio: object) -> dict[str, Any]:
    """The fields of a LayerShape for layer ``index``, whose latents stand for ``compress_ratio`` tokens (0, 1: none).

    The caches are those of vLLM's model class, in its order. ModelConfigError: a ratio that is not known.
    """
    if compress_ratio not in (0, 1, *_STATE_BLOCK_TOKENS):
        raise ModelConfigError(f"{fields.name}: compress_ratios has {compress_ratio!r}, not one of 0, 1, 4 and 128")
    heads, head = fields.integer("num_attention_heads"), fields.integer("head_dim")
    query_latent = fields.integer("q_lora_rank")
    groups, output_latent = fields.integer("o_groups"), fields.integer("o_lora_rank")
    output_width = groups * output_latent
    window = _latents("sliding_window", head, _WINDOW_BLOCK_TOKENS, window_tokens=fields.integer("sliding_window"))
    mixer: dict[str, Any] = {
        "spec": window,
        "query_heads": heads,
        "attention_width": 2 * head,
        "prefill_attention_width": 2 * head,
        "sharded_params": query_latent * heads * head + output_latent * heads * head + output_width * hidden,
        "kv_params": 0,
        "replicated_params": hidden * (query_latent + head),
        "norm_params": heads + query_latent + head + _small_params(fields, index, hidden),
    }
    if isinstance(compress_ratio, int) and compress_ratio > 1:
        _add_latents(fields, mixer, hidden, head, compress_ratio)
    return mixer


def head_hyper_connections(fields: Fields, hidden: int) -> int:
    """Parameters that join the streams of hidden states before the output head."""
    streams = fields.count("hc_mult")
    return streams * streams * hidden + streams + (1 if streams else 0)


def _add_latents(fields: Fields, mixer: dict[str, Any], hidden: int, head: int, ratio: int) -> None:
    latents = replace(_latents("full_attention", head, BLOCK_TOKENS), tokens_per_state=ratio)
    state = _uncompressed(head, ratio)
    mixer["norm_params"] += _compressor_params(mixer, hidden, head, ratio)
    if ratio != 4:
        mixer["beside"] = (latents, state)
        return
    indexer_heads, indexer_head = fields.integer("index_n_heads"), fields.integer("index_head_dim")
    keys = replace(latents, head_size=indexer_head, fixed_token_bytes=indexer_head + 4)
    mixer["before"] = (keys, _uncompressed(indexer_head, ratio))
    mixer["beside"] = (latents, state)
    mixer["replicated_params"] += fields.integer("q_lora_rank") * indexer_heads * indexer_head + indexer_heads * hidden
    mixer["norm_params"] += _compressor_params(mixer, hidden, indexer_head, ratio)


def _latents(kind: Any, head: int, block_tokens: int, window_tokens: int | None = None) -> LayerSpec:
    return LayerSpec(
        kind,
        1,
        head,
        window_tokens=window_tokens,
        is_latent=True,
        fixed_token_bytes=_LATENT_BYTES,
        block_tokens=block_tokens,
        page_alignment_bytes=_PAGE_ALIGNMENT_BYTES,
    )


def _overlap(ratio: int) -> int:
    """Groups of 4 tokens overlap: each token is in two."""
    return 2 if ratio == 4 else 1


def _uncompressed(head: int, ratio: int) -> LayerSpec:
    """Values and scores of the tokens that are not a whole group yet, in float32."""
    state = _latents("sliding_window", head, _STATE_BLOCK_TOKENS[ratio], window_tokens=_overlap(ratio) * ratio)
    return replace(state, fixed_token_bytes=_overlap(ratio) * 2 * head * 4)


def _compressor_params(mixer: dict[str, Any], hidden: int, head: int, ratio: int) -> int:
    """Adds a compressor's matrices to ``mixer``; returned are its position embeddings and its norm."""
    mixer["replicated_params"] += _overlap(ratio) * 2 * head * hidden
    return ratio * _overlap(ratio) * head + head


def _small_params(fields: Fields, index: int, hidden: int) -> int:
    """What mixes ``hc_mult`` streams of hidden states (mHC) around attention and MLP, and a table of experts.

    The first layers look their experts up by token, and have no bias of the router.
    """
    streams = fields.count("hc_mult")
    mixed = streams * (2 + streams)
    params = 2 * (mixed * streams * hidden + mixed + 3) if streams else 0
    if index >= fields.count("num_hash_layers"):
        return params
    return params + fields.integer("vocab_size") * fields.integer("num_experts_per_tok") - num_experts(fields)
