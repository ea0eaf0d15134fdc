"""Random weights: a model without a checkpoint, of the same cost, whose outputs depend on everything it attends to."""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import torch
from torch import Tensor

_EMBEDDING_STD = 0.06
_GAINS = {"q_proj": sqrt(2), "k_proj": sqrt(2), "down_proj": 1.7}
"""What a matrix does to the size of a normalised input; 1 for those not named. Queries and keys of sqrt(2) give scores
a standard deviation of 2, so that few tokens of a context have most of the attention and are not averaged away (3 would
double what rounding in 16 bits does to the outputs); 1.7 undoes what the gate takes from the MLP's inner values."""


class RandomWeights:
    """Normally distributed matrices, the same for the same seed, name and kind of device, generated on the device.

    A matrix has a standard deviation of gain / sqrt(inputs), so activations keep their size at any width. A small
    embedding leaves the residual stream to the layers: even a tied model does not just repeat its input.
    """

    label = "random weights"

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device

    def names(self) -> tuple[str, ...]:
        """None: whatever is asked for is drawn."""
        return ()

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this name: matrices and biases are drawn, norms are constant."""
        part = name.split(".")[-2]
        if part in ("q_norm", "k_norm"):
            return torch.full(shape, _GAINS["q_proj"], device=self._device)
        if "norm" in part:
            return torch.ones(shape, device=self._device)
        digest = blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest) >> 1)
        values = torch.randn(shape, generator=generator, device=self._device)
        if part == "embed_tokens" or name.endswith(".bias"):
            return values.mul_(_EMBEDDING_STD)
        return values.mul_(_GAINS.get(part, 1.0) / sqrt(shape[1]))
