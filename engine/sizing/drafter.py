"""What a drafter of speculative decoding adds: layers with a cache on the last pipeline rank, and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES
from kvtwin.engine.sizing.model_shape import LayerShape, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter as sizes.

    ``shape`` has its layers; its vocabulary counts only matrices that it does not share with the target.
    ``fusing_params`` join the target's hidden states to its input, the same on every rank. ``tensor_parallel_size``
    and ``kv_cache_dtype`` are None where they are the target's.
    """

    shape: ModelShape
    fusing_params: int = 0
    tensor_parallel_size: int | None = None
    kv_cache_dtype: str | None = None

    def weight_bytes(self, tensor_parallel_size: int) -> int:
        """Bytes of its weights on one tensor-parallel rank. ModelConfigError: a quantisation of unknown size."""
        fusing_bytes = self.fusing_params * DTYPE_BYTES[self.shape.dtype]
        return self.shape.weight_bytes(self.tensor_parallel_size or tensor_parallel_size) + fusing_bytes


def next_token_modules(target: ModelShape) -> Drafter:
    """The modules for multi-token prediction (MTP) that the target's checkpoint has: one decoder layer each.

    Every module reads an embedding and a hidden state, both normalised, through a matrix (DeepSeek-V3 report, section
    2.2); embedding and output head are the target's. A layer is like the target's last one of attention, and where
    mixers and MLPs are layers of their own, like its last one of those too.
    """
    module = (_attention_layer(target), *[layer for layer in target.layers if layer.spec.kind == "mlp"][-1:])
    return Drafter(
        shape=_of_layers(target, module * target.num_mtp_layers),
        fusing_params=target.num_mtp_layers * (2 * target.hidden_size + 2) * target.hidden_size,
    )


def _attention_layer(target: ModelShape) -> LayerShape:
    like = next(layer for layer in reversed(target.layers) if layer.spec.kind not in ("mamba", "mlp"))
    return target.mtp_layer or like


def one_layer_like(target: ModelShape) -> Drafter:
    """A drafter of EAGLE's kind that is not known: one layer like the target's last one of attention.

    It reads an embedding and a hidden state through a matrix (EAGLE, Li et al., 2024, section 4.2).
    """
    return Drafter(shape=_of_layers(target, (_attention_layer(target),)), fusing_params=2 * target.hidden_size**2)


def eagle(shape: ModelShape, *, head_rows: int) -> Drafter:
    """An EAGLE drafter of ``shape``; ``head_rows`` are the tokens of an output head of its own (EAGLE-3), or 0.

    EAGLE-3 reads hidden states of three of the target's layers through a matrix, and its layer's attention reads an
    embedding beside the result (Li et al., 2025, section 3.1): the input of queries, keys and values is twice as wide.
    """
    if not head_rows:
        return Drafter(shape=replace(shape, vocab_size=0), fusing_params=2 * shape.hidden_size**2)
    layers = tuple(_with_wide_input(layer, shape.hidden_size) for layer in shape.layers)
    own = replace(shape, layers=layers, vocab_size=head_rows, tied_embeddings=True)
    return Drafter(shape=own, fusing_params=3 * shape.hidden_size**2)


def block_drafter(shape: ModelShape, *, num_target_layers: int) -> Drafter:
    """A DFlash drafter: it reads hidden states of some of the target's layers, and shares embedding and head."""
    fusing = num_target_layers * shape.hidden_size**2
    return Drafter(shape=replace(shape, vocab_size=0), fusing_params=fusing)


def _of_layers(target: ModelShape, layers: tuple[LayerShape, ...]) -> ModelShape:
    return replace(target, layers=layers, vocab_size=0)


def _with_wide_input(layer: LayerShape, hidden_size: int) -> LayerShape:
    queries = layer.query_heads * layer.spec.head_size
    return replace(
        layer,
        sharded_params=layer.sharded_params + queries * hidden_size,
        kv_params=layer.kv_params + layer.spec.num_kv_heads * (layer.spec.head_size * 2) * hidden_size,
    )
