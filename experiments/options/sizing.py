"""The options that decide the size of the KV cache, with vLLM's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, KV_CACHE_DTYPES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Bytes, Choice, Number, Switch, Text, Whole
from kvtwin.experiments.options.refused import NOT_MODELLED

MOST_REPLICAS = 1024

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
    dtype: str = option("auto", Choice(_DTYPES), "dtype of weights and activations; auto: the checkpoint's")
    quantization: str | None = option(None, Text("METHOD"), "must be the checkpoint's, which is read anyway", "-q")
    kv_cache_dtype: str = option(
        "auto", Choice(KV_CACHE_DTYPES), "dtype of the KV cache; auto: the checkpoint's, else same as --dtype"
    )
    mamba_cache_dtype: str = option("auto", Choice(_STATE_DTYPES), "dtype of Mamba states; auto: same as --dtype")
    mamba_ssm_cache_dtype: str = option(
        "auto",
        Choice(_STATE_DTYPES),
        "dtype of Mamba SSM states; auto: from config.json, else same as --mamba-cache-dtype",
    )
    block_size: int = option(16, Whole("TOKENS"), "tokens per block")
    gpu_memory_utilization: float = option(
        GPU_MEMORY_UTILIZATION,
        Number("SHARE", 0, 1, above=True),
        "share of the GPU's total memory that the server may use",
    )
    tensor_parallel_size: int = option(1, Whole("GPUS"), "tensor-parallel GPUs", "-tp")
    pipeline_parallel_size: int = option(1, Whole("STAGES"), "pipeline stages", "-pp")
    data_parallel_size: int = option(
        1, Whole("N", 1, MOST_REPLICAS), "replicas of the server, each with its own cache; they share experts", "-dp"
    )
    enable_expert_parallel: bool = option(
        False, Switch(), "a GPU has whole experts, not a slice of each: of a mixture of experts", "-ep"
    )
    max_model_len: int | None = option(
        None,
        Whole("TOKENS", -1),
        "longest request, prompt and output (default: the model's maximum); -1: the longest that fits",
    )
    max_num_batched_tokens: int | None = option(None, Whole("TOKENS"), "tokens per step (default: depends on the GPU)")
    max_num_seqs: int | None = option(None, Whole("SEQS"), "most requests per step (default: depends on the GPU)")
    num_gpu_blocks_override: int | None = option(None, Whole("BLOCKS"), "use this many blocks, whatever fits in memory")
    kv_cache_memory_bytes: int | None = option(None, Bytes(), "memory of the KV cache per GPU, such as 10GiB")
    disable_hybrid_kv_cache_manager: bool = option(False, Switch(), "treat windows and chunks as full attention")
    enforce_eager: bool = option(
        False,
        Switch(),
        "no CUDA graphs: they take no memory, and a state model may have more sequences than blocks; step times stay",
    )
    async_scheduling: bool = option(True, Switch(), "schedule a step while the previous one runs")
    enable_prefix_caching: bool | None = option(
        None, Switch(), "reuse blocks of shared prefixes (default: on; off without attention)"
    )
    weight_bytes: int | None = option(None, Bytes(), "measured size of the weights per GPU, instead of a count")
    activation_peak_bytes: int | None = option(
        None, Bytes(), "measured peak of activations per GPU, instead of an estimate"
    )
    cuda_graph_bytes: int | None = option(None, Bytes(), "measured size of CUDA graphs per GPU, instead of an estimate")
    other_bytes: int | None = option(None, Bytes(), "measured memory outside torch per GPU, instead of an estimate")
