"""Dividing a model's layers into KV cache groups that share one pool of blocks (specification, section 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvtwin.engine.sizing.layer_spec import LayerKind, LayerSpec


class SizingError(ValueError):
    """A cache that cannot be planned or is too small; the message is vLLM's where vLLM has one.

    ``suggested_max_model_len`` is the longest request in tokens that would fit, where there is one;
    ``suggested_max_num_seqs`` the most sequences with which the server starts, where their number is what is wrong.
    """

    def __init__(
        self, message: str, suggested_max_model_len: int | None = None, suggested_max_num_seqs: int | None = None
    ) -> None:
        super().__init__(message)
        self.suggested_max_model_len = suggested_max_model_len
        self.suggested_max_num_seqs = suggested_max_num_seqs


class NotEnoughMemoryError(SizingError):
    """A cache that is too small for one request."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A layer with the block size that it is cut into.

    A page is one layer's share of one block: ``data_bytes`` of it hold keys, values or states; the rest, up
    to ``page_bytes``, is padding.
    """

    spec: LayerSpec
    block_size: int
    data_bytes: int
    page_bytes: int
    is_draft: bool = field(default=False, compare=False)
    """Whether it is a drafter's; it shares groups with the target's layers."""

    @property
    def kind(self) -> LayerKind:
        """The layer's kind of attention."""
        return self.spec.kind

    def request_blocks(self, length_tokens: int, in_flight_tokens: int, mamba_blocks: int = 1) -> int:
        """Most blocks that a request of ``length_tokens`` holds in this layer's group at once.

        ``in_flight_tokens`` is F of the specification, section 10.4: the batched tokens that may be under way before a
        window moves on. A window may start in the middle of a block, hence the one block more.
        """
        window = self.spec.window_tokens
        if self.kind == "mamba":
            return mamba_blocks + (self.spec.prefill_checkpoint_alignment is not None)
        if window is None:
            return ceil_div(length_tokens, self.block_size)
        if self.kind == "chunked_local_attention":
            return ceil_div(min(window + in_flight_tokens, length_tokens), self.block_size)
        return ceil_div(min(window - 1 + in_flight_tokens, length_tokens), self.block_size) + 1


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table in common.

    ``layer_indices`` number the layers of all pipeline ranks in order; ``layers`` are those layers. All have
    the same block size and window; pages differ only in the one-group case.
    """

    layer_indices: tuple[int, ...]
    layers: tuple[CacheLayer, ...]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layers[0].block_size

    @property
    def kind(self) -> LayerKind:
        """The kind of attention of the group's layers."""
        return self.layers[0].kind

    @property
    def window_tokens(self) -> int | None:
        """The sliding window, or the chunk of chunked local attention."""
        return self.layers[0].spec.window_tokens

    @property
    def has_draft_layers(self) -> bool:
        """Whether layers of the drafter are among them."""
        return any(layer.is_draft for layer in self.layers)

    @property
    def prefill_checkpoint_alignment(self) -> int | None:
        """As of its layers: see LayerSpec."""
        return self.layers[0].spec.prefill_checkpoint_alignment

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in all of the group's layers."""
        return sum(layer.page_bytes for layer in self.layers)

    @property
    def data_bytes(self) -> int:
        """Bytes of one block without padding."""
        return sum(layer.data_bytes for layer in self.layers)

    def request_blocks(self, length_tokens: int, in_flight_tokens: int, mamba_blocks: int = 1) -> int:
        """Most blocks that a request holds in this group at once; see CacheLayer."""
        return self.layers[0].request_blocks(length_tokens, in_flight_tokens, mamba_blocks)

    def bytes_on(self, first_layer: int, end_layer: int) -> int:
        """Bytes of one block in the layers of one pipeline rank, numbered from first up to end."""
        pairs = zip(self.layer_indices, self.layers, strict=True)
        return sum(layer.page_bytes for index, layer in pairs if first_layer <= index < end_layer)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def plan_groups(layers: Sequence[CacheLayer], disable_hybrid_kv_cache_manager: bool = False) -> list[LayerGroup]:
    """The groups that vLLM makes of ``layers``, which belong to all pipeline ranks in order.

    Equal layers, or layers of one kind with different pages, make one group. Otherwise pages are made equal and each
    kind is dealt out to groups of one size; those of compressed latents are packed as they are. SizingError: layers
    that cannot share a pool.
    """
    layers = list(layers)
    if not layers:
        raise SizingError("the model has no layer with a KV cache")
    is_packed = any(layer.spec.block_tokens for layer in layers)
    if disable_hybrid_kv_cache_manager and is_packed:
        raise SizingError("compressed latents without the hybrid KV cache manager are not modelled")
    if disable_hybrid_kv_cache_manager:
        layers = _windows_as_full(layers)
    if _is_one_kind(layers):
        return [LayerGroup(tuple(range(len(layers))), tuple(layers))]
    return _pack(layers) if is_packed else _deal(_with_equal_pages(layers))


def _windows_as_full(layers: list[CacheLayer]) -> list[CacheLayer]:
    """Without the hybrid manager, windows beside full attention keep everything."""
    if _is_one_kind(layers):
        return layers
    if not any(layer.kind == "full_attention" for layer in layers) or any(layer.kind == "mamba" for layer in layers):
        raise SizingError("without the hybrid KV cache manager these kinds of layers cannot share one group")
    for kind in ("sliding_window", "chunked_local_attention"):
        if len({layer.spec.window_tokens for layer in layers if layer.kind == kind}) > 1:
            raise SizingError("without the hybrid KV cache manager all windows must have the same size")
    block_sizes = {layer.block_size for layer in layers if layer.kind == "full_attention"}
    if len(block_sizes) > 1:
        raise SizingError("without the hybrid KV cache manager full attention must have one block size")
    return [_as_full(layer, *block_sizes) for layer in layers]


def _as_full(layer: CacheLayer, block_size: int) -> CacheLayer:
    page_bytes = layer.page_bytes * block_size // layer.block_size
    spec = replace(layer.spec, kind="full_attention", window_tokens=None)
    return replace(layer, spec=spec, block_size=block_size, data_bytes=page_bytes, page_bytes=page_bytes)


def _is_one_kind(layers: list[CacheLayer]) -> bool:
    """Whether one block table fits all layers, whatever their pages."""
    return len({(layer.kind, layer.block_size, layer.spec.window_tokens) for layer in layers}) == 1 and (
        layers[0].kind != "mamba" or len(set(layers)) == 1
    )


def _with_equal_pages(layers: list[CacheLayer]) -> list[CacheLayer]:
    """Larger blocks for pages that divide the largest one, padding for the others."""
    largest = max(layer.page_bytes for layer in layers)
    result = []
    for layer in layers:
        if largest % layer.page_bytes == 0 and layer.kind != "mamba":
            ratio = largest // layer.page_bytes
            layer = replace(layer, block_size=layer.block_size * ratio, data_bytes=layer.data_bytes * ratio)
        result.append(replace(layer, page_bytes=largest))
    return result


def _deal(layers: list[CacheLayer]) -> list[LayerGroup]:
    """Groups of one size, equal layers dealt round-robin; the last ones may be a layer short."""
    alike: dict[CacheLayer, list[int]] = {}
    for index, layer in enumerate(layers):
        alike.setdefault(layer, []).append(index)
    counts = [len(indices) for indices in alike.values()]
    group_size = max(counts) if max(counts) * 2 < min(counts) * 3 else min(counts)
    groups = []
    for indices in alike.values():
        num_groups = ceil_div(len(indices), group_size)
        for start in range(num_groups):
            dealt = tuple(indices[start::num_groups])
            groups.append(LayerGroup(dealt, tuple(layers[index] for index in dealt)))
    return groups


def _pack(layers: Sequence[CacheLayer]) -> list[LayerGroup]:
    """Groups of layers whose pages differ and lie side by side in a block (specification, section 13.18).

    A kind with as many layers of every page size is cut into groups of equal repeats, each one layer of every size. So
    many repeats go into a group as pad all such kinds least, at least those of the largest kind with several page
    sizes, which stays whole. Other kinds stay whole too.
    """
    kinds: dict[tuple[LayerKind, int, int | None], dict[int, list[int]]] = {}
    for index, layer in enumerate(layers):
        kind = (layer.kind, layer.block_size, layer.spec.window_tokens)
        kinds.setdefault(kind, {}).setdefault(layer.page_bytes, []).append(index)
    repeats = {
        kind: len(next(iter(by_page.values())))
        for kind, by_page in kinds.items()
        if len({len(indices) for indices in by_page.values()}) == 1
    }
    least = max((count for kind, count in repeats.items() if len(kinds[kind]) > 1), default=0)
    size = _least_padding(list(repeats.values()), least) if least else 0
    groups = []
    for kind, by_page in kinds.items():
        num_groups = ceil_div(repeats[kind], size) if size and kind in repeats else 1
        if num_groups == 1:
            indices = sorted(index for of_page in by_page.values() for index in of_page)
            groups.append(_group(indices, layers))
            continue
        pattern = list(zip(*by_page.values(), strict=True))
        for start in range(num_groups):
            groups.append(_group([index for repeat in pattern[start::num_groups] for index in repeat], layers))
    return groups


def _group(indices: Sequence[int], layers: Sequence[CacheLayer]) -> LayerGroup:
    return LayerGroup(tuple(indices), tuple(layers[index] for index in indices))


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The size from ``least`` on whose multiples ``counts`` are filled up to with least padding; of ties the last."""

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(least, max(*counts, least) + 1), key=lambda size: (padding(size), -size))
