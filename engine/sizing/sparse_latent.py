"""Which format vLLM's kernels keep sparse latent attention (DeepSeek-V3.2, GLM-5) in, by the GPU."""

from __future__ import annotations

from kvtwin.engine.sizing.model_shape import ModelShape

_PACKED = "fp8_ds_mla"


def cache_format(shape: ModelShape, kv_cache_dtype: str, compute_capability: float) -> str:
    """The KV cache dtype in place of the one asked for; the same one for models without an indexer.

    FlashMLA (Hopper; taken where the GPU is not known) keeps "fp8" packed, 656 bytes a token and layer, and FlashInfer
    "fp8_e4m3" as plain values. Of data-centre Blackwell (10.x) FlashInfer keeps both plain; GLM-5's default is 8 bits
    there. The only kernel of other Blackwell boards (12.x) has the packed format alone (specification, section 13.16).
    DeepSeek-V4's latents are packed too. ValueError: a dtype that they are not modelled in.
    """
    if any(layer.spec.block_tokens for layer in shape.layers):
        if kv_cache_dtype not in ("auto", "fp8", "fp8_e4m3", _PACKED):
            raise ValueError(f"kv_cache_dtype {kv_cache_dtype}: compressed latents are modelled in {_PACKED} only")
        return _PACKED
    if not any(spec.fixed_token_bytes for layer in shape.layers for spec in layer.beside):
        return kv_cache_dtype
    generation = int(compute_capability)
    if generation == 12:
        return _PACKED
    if generation == 10:
        return (shape.sm100_kv_cache_dtype or "auto") if kv_cache_dtype == "auto" else kv_cache_dtype
    return _PACKED if kv_cache_dtype == "fp8" else kv_cache_dtype
