"""The option that names the server, and which options are of one server alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtwin.engine.server import SERVERS
from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import fields_of, option
from kvtwin.experiments.options.host_memory import HostMemoryOptions
from kvtwin.experiments.options.kinds import Choice
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.sglang import SglangOptions
from kvtwin.experiments.options.speculation import SpeculationOptions
from kvtwin.experiments.options.trtllm import TrtllmOptions


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Server."""

    server: str = option(
        "vllm", Choice(SERVERS), "whose cache and scheduler; each server takes its own flags, and no others'"
    )


_OF_ALL = {"enable_chunked_prefill"}

_SIZING_OF_VLLM = {
    *("block_size", "gpu_memory_utilization", "num_gpu_blocks_override", "kv_cache_memory_bytes"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "async_scheduling", "enable_prefix_caching"),
    *("data_parallel_size", "disable_hybrid_kv_cache_manager", "enforce_eager", "cuda_graph_bytes"),
    *("mamba_cache_dtype", "mamba_ssm_cache_dtype"),
}

_SUBJECTS: Mapping[str, tuple[type, ...]] = {
    "vllm": (EngineOptions, SpeculationOptions, HostMemoryOptions, ReplicaOptions),
    "sglang": (SglangOptions,),
    "trtllm": (TrtllmOptions,),
}
"""By server, the subjects whose options are its own."""

OWNERS: Mapping[str, str] = dict.fromkeys(_SIZING_OF_VLLM, "vllm") | {
    field.name: server
    for server, subjects in _SUBJECTS.items()
    for subject in subjects
    for field in fields_of(subject)
    if field.name not in _OF_ALL
}
"""The server of each option that not all of them have."""


def is_foreign(options: object, name: str) -> bool:
    """Whether the option ``name`` is one of a server that ``options`` do not choose, if they choose one at all."""
    return isinstance(options, ServerOptions) and OWNERS.get(name, options.server) != options.server
