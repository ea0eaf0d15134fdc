"""TensorRT-LLM's settings, under the names of its LLM API and with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtwin.engine.trtllm.retention import RetentionConfig

CAPACITY_SCHEDULER_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
CONTEXT_CHUNKING_POLICIES = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")
DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY = 30
EVIDENCE = "from TensorRT-LLM's sources and tests, not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmSettings:
    """TensorRT-LLM with its V1 KV cache manager (C++), for one window size.

    The configuration's ``num_blocks`` counts one block more than the pool has, ``block_size`` is ``tokens_per_block``,
    ``max_num_seqs`` ``max_batch_size``, ``max_num_batched_tokens`` ``max_num_tokens``, ``enable_prefix_caching``
    ``enable_block_reuse``.
    """

    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    num_host_blocks: int = 0
    onboard_blocks: bool = True
    secondary_offload_min_priority: int = DEFAULT_SECONDARY_OFFLOAD_MIN_PRIORITY
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    enable_prefix_aware_scheduling: bool = True
    enable_chunked_prefill: bool = False
    context_chunking_policy: str = "FIRST_COME_FIRST_SERVED"
    retention: RetentionConfig = field(default_factory=RetentionConfig)

    name = "trtllm"
    title = "TensorRT-LLM, V1 manager"
    evidence = EVIDENCE
    has_null_block = False
