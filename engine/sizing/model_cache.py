"""The KV cache of a model on a server: its layers cut into blocks, rank by rank (specification, section 13)."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from kvtwin.engine.sizing.drafter import Drafter
from kvtwin.engine.sizing.group_planning import CacheLayer, SizingError, ceil_div
from kvtwin.engine.sizing.layer_spec import LayerSpec
from kvtwin.engine.sizing.model_shape import ModelShape, pipeline_layers
from kvtwin.engine.sizing.state_checkpoints import block_alignment_tokens

BLOCK_ALIGNMENT_TOKENS = 16
"""vLLM rounds the block size that it chooses for Mamba hybrids to a multiple of what its kernels want."""

LATENT_BLOCK_ALIGNMENT_TOKENS = 128
"""The same beside latent attention (MLA)."""


def cache_layers(
    shape: ModelShape,
    *,
    block_size: int,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    drafter: Drafter | None = None,
    num_drafts: int = 0,
) -> list[list[CacheLayer]]:
    """The layers of every pipeline rank that keep something, with their pages.

    In a hybrid with state layers the attention block grows until its page holds a state, and the state's page
    is padded to it: one block holds one state (vLLM's start-up logs: 544 tokens for Qwen3-Next-80B). Without attention
    a block is as large as a state, and as long as ``block_size`` says. States are larger
    where a step verifies ``num_drafts`` tokens; the layers of the ``drafter`` come last, with blocks of the same size.
    ValueError: unknown dtype, or sizes that tensor parallelism does not divide. SizingError: a rank without a cache.
    """
    for layer in shape.layers:
        if layer.query_heads % tensor_parallel_size:
            raise ValueError(f"{layer.query_heads} heads do not divide by tensor parallel size {tensor_parallel_size}")
    layer_specs = [
        [spec.on_rank(tensor_parallel_size) for spec in layer.specs if spec.has_cache] for layer in shape.layers
    ]
    specs = [spec for of_layer in layer_specs for spec in of_layer]
    state_bytes = max((spec.sequence_state_bytes(shape.dtype, num_drafts) for spec in specs), default=0)
    attention_bytes = max((spec.token_bytes(kv_cache_dtype, shape.dtype) for spec in specs), default=0)
    if attention_bytes and state_bytes > block_size * attention_bytes:
        is_latent = any(spec.is_latent for spec in specs)
        step = max(block_size, LATENT_BLOCK_ALIGNMENT_TOKENS if is_latent else BLOCK_ALIGNMENT_TOKENS)
        step = lcm(step, block_alignment_tokens(specs))
        block_size = ceil_div(ceil_div(state_bytes, attention_bytes), step) * step

    def cut(spec: LayerSpec) -> CacheLayer:
        page_bytes = block_size * attention_bytes or state_bytes
        return _layer(spec, block_size, kv_cache_dtype, page_bytes, shape.dtype, num_drafts)

    ranks = [
        [cut(spec) for of_layer in layer_specs[first:end] for spec in of_layer]
        for first, end in pipeline_layers(shape.num_layers, pipeline_parallel_size)
    ]
    if not all(ranks):
        raise SizingError(f"{shape.name}: a pipeline rank has no layer with a cache, which is not modelled")
    if drafter:
        ranks[-1] += _draft_layers(drafter, block_size, kv_cache_dtype, tensor_parallel_size)
    return ranks


def _draft_layers(
    drafter: Drafter, block_size: int, kv_cache_dtype: str, tensor_parallel_size: int
) -> list[CacheLayer]:
    shape = drafter.shape
    layers = []
    tp = drafter.tensor_parallel_size or tensor_parallel_size
    for spec in (spec.on_rank(tp) for layer in shape.layers for spec in layer.specs if spec.has_cache):
        dtype = drafter.kv_cache_dtype or kv_cache_dtype
        layers.append(replace(_layer(spec, block_size, dtype, 0, shape.dtype, 0), is_draft=True))
    return layers


def _layer(
    spec: LayerSpec, block_size: int, kv_cache_dtype: str, state_page_bytes: int, dtype: str, num_drafts: int
) -> CacheLayer:
    if spec.kind == "mamba":
        return CacheLayer(spec, block_size, spec.sequence_state_bytes(dtype, num_drafts), state_page_bytes)
    block_size = spec.block_tokens or block_size
    page_bytes = spec.page_bytes(block_size, kv_cache_dtype, dtype)
    return CacheLayer(spec, block_size, page_bytes, page_bytes)
