"""Which dtypes a server uses: of weights, of states, and of the KV cache."""

from __future__ import annotations

from dataclasses import replace

from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, KV_CACHE_DTYPES
from kvtwin.engine.sizing.model_shape import ModelShape, WeightFormat
from kvtwin.engine.sizing.sparse_latent import cache_format
from kvtwin.experiments.errors import UserError
from kvtwin.sim.gpu_spec import GpuSpec


def kv_cache_dtype(shape: ModelShape, dtype: str, gpu: GpuSpec | None, notes: list[str]) -> str:
    """The format of the cache: of the GPU's kernels, for the dtype given or, with "auto", stated by the checkpoint."""
    asked = _asked_kv_cache_dtype(shape, dtype, notes)
    try:
        kept = cache_format(shape, asked, gpu.compute_capability if gpu else 0.0)
    except ValueError as error:
        raise UserError(f"{shape.name}: {error}") from None
    if kept != asked:
        notes.append(f"vLLM keeps the sparse attention's cache as {kept} on this GPU")
    return kept


def _asked_kv_cache_dtype(shape: ModelShape, dtype: str, notes: list[str]) -> str:
    if dtype != "auto" or shape.kv_cache_dtype is None:
        return dtype
    if shape.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise UserError(
            f"{shape.name}: the checkpoint asks for a KV cache in {shape.kv_cache_dtype}, which is not modelled; "
            "choose another by --kv-cache-dtype"
        )
    notes.append(f"the checkpoint asks for a KV cache in {shape.kv_cache_dtype} (--kv-cache-dtype changes it)")
    return shape.kv_cache_dtype


def with_dtype(shape: ModelShape, dtype: str) -> ModelShape:
    if dtype == "auto":
        return shape
    name = {"half": "float16", "float": "float32"}.get(dtype, dtype)
    size = float(DTYPE_BYTES[name])
    fmt = shape.weight_format if shape.quantization else WeightFormat(name, size, size, size)
    return replace(shape, dtype=name, weight_format=fmt)


def with_state_dtypes(shape: ModelShape, conv_dtype: str, ssm_dtype: str) -> ModelShape:
    changes = {"conv_dtype": conv_dtype, "ssm_dtype": ssm_dtype}
    changes = {name: dtype for name, dtype in changes.items() if dtype != "auto"}
    if not changes:
        return shape
    if not any(layer.spec.kind == "mamba" for layer in shape.layers):
        flag = "--mamba-cache-dtype" if "conv_dtype" in changes else "--mamba-ssm-cache-dtype"
        raise UserError(f"{flag}: {shape.name} has no state-space layers")
    layers = [replace(layer, spec=replace(layer.spec, **changes)) for layer in shape.layers]
    return replace(shape, layers=tuple(layers))
