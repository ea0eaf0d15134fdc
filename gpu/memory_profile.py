"""How much memory a device has left for the KV cache, once a model is on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from kvtwin.engine.sizing.memory_budget import GIB, GivenBytes, MemoryBudget, Server, memory_budget
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.gpu.attention import AttentionBatch
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.errors import DeviceError, memory_for
from kvtwin.gpu.sampling import sample

CUDA_GRAPH_BYTES = 2 * GIB
"""Set aside for the graphs of decode steps: they are captured behind the cache. An assumption, on the safe side."""


def measured_budget(
    decoder: Decoder,
    shape: ModelShape,
    *,
    utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    block_size: int,
    total_bytes: int | None = None,
) -> MemoryBudget:
    """The budget of the device that holds ``decoder``, whose ``shape`` is what the engine knows of it.

    On a GPU the largest step is run, and its memory is measured. On a CPU ``total_bytes`` says what may be used, the
    weights are counted, and the step's memory is the engine's estimate. Raises DeviceError: nothing is left.
    """
    device = decoder.weights.embedding.device
    weight_bytes = sum(tensor.nbytes for tensor in _tensors(decoder.weights))
    if device.type == "cuda":
        total_bytes = torch.cuda.mem_get_info(device)[1]
        peak_bytes = _peak_bytes(decoder, max_num_batched_tokens, max_num_seqs, block_size)
        given = GivenBytes(
            weights=weight_bytes,
            activation_peak=peak_bytes,
            cuda_graphs=CUDA_GRAPH_BYTES,
            other=_bytes_beside_torch(device),
        )
    elif total_bytes is None:
        raise DeviceError(f"device {device}: how many bytes may be used must be given")
    else:
        given = GivenBytes(weights=weight_bytes, cuda_graphs=0, other=0)
    budget = memory_budget(
        shape,
        Server(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs),
        total_bytes=total_bytes,
        utilization=utilization,
        given=given,
    )
    if budget.available_bytes <= 0:
        items = ", ".join(f"{item.name} {item.num_bytes:,}" for item in budget.items)
        raise DeviceError(
            f"{device} has no memory left for a KV cache: {budget.requested_bytes:,} bytes may be used "
            f"({utilization:g} of {total_bytes:,}), and they are needed for {items}"
        )
    return budget


def run_largest_step(decoder: Decoder, num_tokens: int, num_sequences: int, block_size: int) -> Tensor:
    """Compute as many tokens as a step may have, and sample for as many sequences; the output tokens.

    Their cache is a single block, which all tables name and nothing is written to.
    """
    device = decoder.weights.embedding.device
    num_sequences = min(num_sequences, num_tokens)
    each, rest = divmod(num_tokens, num_sequences)
    query_tokens = [each] * (num_sequences - 1) + [each + rest]
    cache = decoder.new_cache(1, block_size)
    starts = torch.tensor([0, *query_tokens], device=device).cumsum(0)
    batch = AttentionBatch(
        slots=torch.full((num_tokens,), -1, device=device),
        query_starts=starts.int(),
        context_tokens=torch.tensor(query_tokens, dtype=torch.int32, device=device),
        block_tables=torch.zeros(num_sequences, -(-query_tokens[-1] // block_size), dtype=torch.int32, device=device),
        num_decodes=query_tokens.count(1),
        max_query_tokens=query_tokens[-1],
        max_context_tokens=query_tokens[-1],
    )
    positions = torch.arange(num_tokens, device=device) % decoder.config.max_position_tokens
    logits = decoder.logits(decoder.forward(torch.zeros_like(positions), positions, cache, batch)[starts[1:] - 1])
    seeds = torch.zeros(num_sequences, dtype=torch.int64, device=device)
    return sample(logits, 1.0, seeds, seeds)


def _peak_bytes(decoder: Decoder, num_tokens: int, num_sequences: int, block_size: int) -> int:
    """What the largest step needs beside the weights."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with memory_for(f"a step of {num_tokens:,} tokens"), torch.inference_mode():
        run_largest_step(decoder, num_tokens, num_sequences, block_size)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _bytes_beside_torch(device: torch.device) -> int:
    """Used by CUDA's context, libraries and other programs."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _tensors(weights: object) -> Iterator[Tensor]:
    """Every tensor in nested dataclasses and lists, once."""
    seen: set[int] = set()
    parts = [weights]
    while parts:
        part = parts.pop()
        if isinstance(part, Tensor) and id(part) not in seen:
            seen.add(id(part))
            yield part
        elif isinstance(part, list):
            parts += part
        elif is_dataclass(part):
            parts += [getattr(part, field.name) for field in fields(part)]
