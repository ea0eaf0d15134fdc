"""A decoder on a device, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from kvtwin.gpu.attention import Attention, AttentionBatch
from kvtwin.gpu.decoder_config import DecoderConfig
from kvtwin.gpu.decoder_weights import DecoderWeights, LayerWeights
from kvtwin.gpu.layer_ops import LayerOps, Rotation, TorchLayerOps
from kvtwin.gpu.paged_cache import PagedCache
from kvtwin.gpu.torch_attention import attend_to

_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From layer index, queries, keys and values, [tokens, heads, head_dim] each, to the attention's output."""

_PLAIN = TorchLayerOps()


class Decoder:
    """The model of ``config``; tokens of many sequences are computed side by side, one row each.

    No state between calls: what a sequence has computed is in the cache alone.
    """

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, attention: Attention, layer_ops: LayerOps = _PLAIN
    ) -> None:
        self.config = config
        self.weights = weights
        self._attention = attention
        self._layer_ops = layer_ops
        self._frequencies = config.rope.frequencies(config.head_dim, weights.embedding.device)

    def new_cache(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> PagedCache:
        """An empty cache for this model, beside its weights. DeviceError: there is no memory for it."""
        config, embedding = self.config, self.weights.embedding
        return PagedCache(
            config.num_layers,
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            dtype=embedding.dtype,
            device=embedding.device,
            num_host_blocks=num_host_blocks,
        )

    def forward(self, token_ids: Tensor, positions: Tensor, cache: PagedCache, batch: AttentionBatch) -> Tensor:
        """Compute tokens [T] at their positions [T]; the result is [T, hidden], after the final norm.

        In every layer all keys and values are written before any is read: sequences of a batch may share blocks that
        the batch itself fills.
        """

        def attend(index: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            layer = cache.layer(index)
            self._attention.write(keys, values, layer, batch.slots)
            return self._attention.attend(query, layer, batch)

        return self._hidden(token_ids, positions, attend, self._layer_ops)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] of :meth:`forward` to [N, vocab], in float32."""
        return F.linear(hidden, self.weights.head).float()

    def dense_logits(self, token_ids: Tensor, first: int = 0) -> Tensor:
        """Logits [T - first, vocab] behind the tokens from ``first`` on of a sequence [T], all at once: the reference.

        No cache, no blocks, no kernels but torch's own.
        """

        def attend(_: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend_to(query, keys, values)

        positions = torch.arange(len(token_ids), device=token_ids.device)
        return self.logits(self._hidden(token_ids, positions, attend, _PLAIN)[first:])

    def _hidden(self, token_ids: Tensor, positions: Tensor, attend: _Attend, ops: LayerOps) -> Tensor:
        weights, epsilon = self.weights, self.config.norm_epsilon
        angles = positions[:, None].float() * self._frequencies
        rotation = Rotation(angles.cos(), angles.sin())
        norm_behind = [layer.attention_norm for layer in weights.layers[1:]] + [weights.final_norm]
        hidden = F.embedding(token_ids, weights.embedding)
        normed = ops.norm(hidden, weights.layers[0].attention_norm, epsilon)
        for index, layer in enumerate(weights.layers):
            attended = attend(index, *self._queries_keys_values(normed, layer, rotation, ops)).flatten(1)
            update = F.linear(attended, layer.output, layer.output_bias)
            hidden, normed = ops.add_and_norm(hidden, update, layer.mlp_norm, epsilon)
            update = F.linear(ops.gate(F.linear(normed, layer.gate_up)), layer.down)
            hidden, normed = ops.add_and_norm(hidden, update, norm_behind[index], epsilon)
        return normed

    def _queries_keys_values(
        self, normed: Tensor, layer: LayerWeights, rotation: Rotation, ops: LayerOps
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[T, heads, head_dim] each, the first two turned by their positions."""
        config = self.config
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, config.head_dim)
        counts = [config.num_query_heads, config.num_kv_heads, config.num_kv_heads]
        query, keys, values = torch.split(heads, counts, dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = ops.norm(query, layer.query_norm, config.norm_epsilon)
            keys = ops.norm(keys, layer.key_norm, config.norm_epsilon)
        return ops.rotate(query, rotation), ops.rotate(keys, rotation), values
