"""How SGLang sizes its KV cache: a share of the GPU for weights and cache, by a formula where nobody names it."""

from __future__ import annotations

MIB = 1 << 20

_LARGE_GPU_MIB = 60 << 10
_LEAST_RESERVE_OF_LARGE_MIB = 10 << 10
_CHUNKS = ((20 << 10, 2048), (60 << 10, 4096), (160 << 10, 8192))
_MOST_CHUNK = 16384
_DECODE_BATCHES = (
    (20 << 10, 8, 8),
    (35 << 10, 48, 160),
    (60 << 10, 32, 160),
    (160 << 10, 256, 512),
)
"""Memory below which GPUs capture decode batches of up to so many requests: with fewer than 4 GPUs, and with more."""
_MOST_DECODE_BATCH = 512


def default_chunk_tokens(memory_bytes: int) -> int:
    """Prompt tokens per step on a GPU."""
    return next((tokens for limit_mib, tokens in _CHUNKS if memory_bytes / MIB < limit_mib), _MOST_CHUNK)


def default_memory_fraction(
    memory_bytes: int, chunk_tokens: int, tensor_parallel_size: int, pipeline_parallel_size: int
) -> float:
    """The share for weights and cache: the rest is for activations, graphs and communication."""
    memory_mib = memory_bytes / MIB
    reserve_mib = 512 + 1.5 * max(chunk_tokens, 2048)
    reserve_mib += tensor_parallel_size * pipeline_parallel_size / 8 * 1024
    reserve_mib += 2 * _decode_batch(memory_mib, tensor_parallel_size) + 8 * _num_prefill_graphs(chunk_tokens)
    if memory_mib > _LARGE_GPU_MIB:
        reserve_mib = max(reserve_mib, _LEAST_RESERVE_OF_LARGE_MIB)
    return round((memory_mib - reserve_mib) / memory_mib, 3)


def default_max_running_requests(num_cache_tokens: int, context_length: int) -> int:
    """Running requests, of whatever length: 2048 to 4096."""
    return max(min(int(num_cache_tokens / context_length * 512), 4096), 2048)


def _decode_batch(memory_mib: float, tensor_parallel_size: int) -> int:
    for limit_mib, of_few, of_many in _DECODE_BATCHES:
        if memory_mib < limit_mib:
            return of_few if tensor_parallel_size < 4 else of_many
    return _MOST_DECODE_BATCH


def _num_prefill_graphs(chunk_tokens: int) -> int:
    """Token counts that are captured: the coarser, the larger."""
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, chunk_tokens, 512))
    return sum(size <= chunk_tokens for first, last, step in steps for size in range(first, last + 1, step))
