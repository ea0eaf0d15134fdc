"""The options that decide the size of the KV cache, with vLLM's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, KV_CACHE_DTYPES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Bytes, Choice, Number, Switch, Text, Whole
from kvtwin.experiments.options.refused import NOT_MODELLED

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default."""

_DTYPES = ("auto", *DTYPE_BYTES, "half", "float")
_STATE_DTYPES = ("auto", *DTYPE_BYTES)


@dataclass(frozen=True, kw_only=True)
class SizingOptions:
    """Model, GPU and cache size (vLLM's flags and defaults, where it has them)."""

    REFUSED: ClassVar[Mapping[str, str]] = NOT_MODELLED

    model: str | None = option(None, Text("NAME"), "name from `kvtwin models`, or a path to a config.json")
    gpu: str | None = option(None, Text("NAME"), "name from `kvtwin gpus`, or a path to a YAML file")
    dtype: str = option("auto", Choice(_DTYPES), "of weights and activations; auto: the checkpoint's")
    kv_cache_dtype: str = option("auto", Choice(KV_CACHE_DTYPES), "of the cache; auto: as --dtype")
    mamba_cache_dtype: str = option("auto", Choice(_STATE_DTYPES), "of states; auto: as --dtype")
    mamba_ssm_cache_dtype: str = option(
        "auto",
        Choice(_STATE_DTYPES),
        "of states of recurrences; auto: the model's config.json, or as --mamba-cache-dtype",
    )
    block_size: int = option(16, Whole("TOKENS"), "tokens per block")
    gpu_memory_utilization: float = option(
        GPU_MEMORY_UTILIZATION,
        Number("SHARE", 0, 1, above=True),
        "share of the GPU's total memory that the server may use",
    )
    tensor_parallel_size: int = option(1, Whole("GPUS"), "GPUs that share each layer", "-tp")
    pipeline_parallel_size: int = option(1, Whole("STAGES"), "stages of layers", "-pp")
    max_model_len: int | None = option(
        None, Whole("TOKENS", -1), "longest request (else the model's longest); -1: the longest that fits"
    )
    max_num_batched_tokens: int | None = option(None, Whole("TOKENS"), "token budget of a step (else by the GPU)")
    max_num_seqs: int | None = option(None, Whole("SEQS"), "requests per step (else by the GPU)")
    num_gpu_blocks_override: int | None = option(None, Whole("BLOCKS"), "use this many blocks, whatever fits")
    kv_cache_memory_bytes: int | None = option(None, Bytes(), "memory of the cache per GPU, such as 10GiB")
    disable_hybrid_kv_cache_manager: bool = option(False, Switch(), "treat windows as full attention")
    async_scheduling: bool = option(True, Switch(), "schedule a step while the one before runs")
    enable_prefix_caching: bool | None = option(None, Switch(), "reuse the blocks of equal prefixes (default: on)")
    weight_bytes: int | None = option(None, Bytes(), "measured weights, instead of a count; per GPU")
    activation_peak_bytes: int | None = option(
        None, Bytes(), "measured peak of activations, instead of an estimate; per GPU"
    )
    cuda_graph_bytes: int | None = option(None, Bytes(), "measured CUDA graphs, instead of an estimate; per GPU")
    other_bytes: int | None = option(None, Bytes(), "measured memory outside torch, instead of an estimate; per GPU")
