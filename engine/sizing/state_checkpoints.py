"""Which layers of states leave prefill checkpoints, and where these can lie (specification, section 10.16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from kvtwin.engine.sizing.layer_spec import LayerSpec
from kvtwin.engine.sizing.model_shape import ModelShape

_KERNEL_TOKENS = {"FlashInfer": 64, "FlashKDA": 16}
"""Kernels export states at multiples of so many tokens: FlashInfer's for gated delta nets, FlashKDA for Kimi-K3."""


def with_checkpoints(shape: ModelShape, *, caches_prefixes: bool, compute_capability: float) -> ModelShape:
    """``shape`` with the checkpoints of a server whose GPUs have this compute capability (0: not known).

    Mamba2 layers declare theirs in any case. Gated delta nets have some where FlashInfer's kernel computes their
    prefill, Kimi-K3's layers where FlashKDA does. Without prefix caching nobody has any.
    """
    specs = [_on_server(layer.spec, caches_prefixes, compute_capability) for layer in shape.layers]
    layers = [replace(layer, spec=spec) for layer, spec in zip(shape.layers, specs, strict=True)]
    return replace(shape, layers=tuple(layers))


def _on_server(spec: LayerSpec, caches_prefixes: bool, compute_capability: float) -> LayerSpec:
    alignment = spec.prefill_checkpoint_alignment
    if spec.prefill_kernel:
        is_blackwell = int(compute_capability) in (10, 12) and spec.delta_key_size == 128
        is_hopper = compute_capability == 9.0 and (spec.prefill_kernel == "FlashInfer" or spec.delta_key_size == 128)
        alignment = _KERNEL_TOKENS[spec.prefill_kernel] if is_hopper or is_blackwell else None
    return replace(spec, prefill_checkpoint_alignment=alignment if caches_prefixes else None)


def block_alignment_tokens(specs: Sequence[LayerSpec]) -> int:
    """Blocks are multiples of this, so that checkpoints can lie at their ends."""
    alignments = [spec.prefill_checkpoint_alignment for spec in specs if spec.kind == "mamba"]
    return lcm(*(alignment or 1 for alignment in alignments)) if all(alignments) else 1


def checkpoint_grid(alignment: int | None, block_size: int, prefix_match_unit: int | None) -> int | None:
    """Tokens behind a chunk's start of which its checkpoint lies a multiple: of FlashInfer's kernel, at block ends.

    ``prefix_match_unit``, if it is set, takes the place of the block.
    """
    if alignment is None or alignment == 1:
        return alignment
    return lcm(prefix_match_unit, alignment) if prefix_match_unit else block_size
