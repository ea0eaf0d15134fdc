"""Attention kernels to compare with: what torch has, and what a file brings along."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kvtwin.gpu.attention import LayerCache
from kvtwin.gpu.benchmark.problem import Problem

Call = Callable[[], Tensor]
Peer = Callable[[Problem], list[Call]]
"""From a problem to calls that solve it, one per layer; each returns ``[tokens, query heads, head_dim]``."""


_FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class CannotCompareError(Exception):
    """This kernel is not made for the problem, or is not there."""


def contiguous_sdpa(problem: Problem) -> list[Call]:
    """torch's attention over keys and values that lie in one piece: what paging may cost at most."""
    lengths, queries = set(problem.context_tokens), set(problem.query_tokens)
    if len(lengths) > 1 or len(queries) > 1:
        raise CannotCompareError("sequences differ in length")
    (context,), (num_queries,) = lengths, queries
    if num_queries not in (1, context):
        raise CannotCompareError("a causal mask that begins in the middle")
    num_sequences = len(problem.query_tokens)

    def together(cache: Tensor) -> Tensor:
        """[sequences, heads, tokens, head_dim]"""
        rows = cache[problem.batch.block_tables.long()].flatten(1, 2)[:, :context]
        return rows.transpose(1, 2)

    def solve(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        with sdpa_kernel(_FUSED if query.is_cuda else SDPBackend.MATH):
            attended = scaled_dot_product_attention(query, keys, values, is_causal=num_queries > 1, enable_gqa=True)
        return attended.transpose(1, 2).flatten(0, 1)

    return [
        partial(
            solve,
            query.unflatten(0, (num_sequences, num_queries)).transpose(1, 2),
            together(layer.keys),
            together(layer.values),
        )
        for query, layer in zip(problem.queries, problem.layers, strict=True)
    ]


def torch_paged(problem: Problem) -> list[Call]:
    """torch's own paged attention, where this torch has it."""
    from torch.nn.attention.varlen import varlen_attn

    if not {"block_table", "seqused_k"} <= set(inspect.signature(varlen_attn).parameters):
        raise CannotCompareError(f"varlen_attn of torch {torch.__version__} takes no block table")
    if not problem.queries[0].is_cuda:
        raise CannotCompareError("needs a GPU")
    batch = problem.batch

    def solve(query: Tensor, layer: LayerCache) -> Any:
        return varlen_attn(
            query,
            layer.keys,
            layer.values,
            batch.query_starts,
            None,
            batch.max_query_tokens,
            batch.max_context_tokens,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=batch.context_tokens,
            block_table=batch.block_tables,
        )

    return [partial(solve, query, layer) for query, layer in zip(problem.queries, problem.layers, strict=True)]


PEERS: dict[str, Peer] = {"SDPA, contiguous": contiguous_sdpa, "torch varlen, paged": torch_paged}


def peers_of(path: Path | None) -> dict[str, Peer]:
    """torch's, and those of a Python file that defines a dictionary ``PEERS`` of the same kind."""
    if path is None:
        return PEERS
    spec = importlib.util.spec_from_file_location("more_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {**PEERS, **module.PEERS}
