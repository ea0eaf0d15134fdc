"""From logits to token ids: greedy, or drawn with noise that is a pure function of seed, position and token id."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def sample(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor) -> Tensor:
    """Token ids [N] for logits [N, vocab] in float32, with a seed and a position per row, [N] int64 each.

    At temperature 0 the highest logit wins, the lowest id among equals. Else token i is drawn with probability
    softmax(logits / temperature)[i], by the Gumbel-max trick: noise is added to the logits and the highest sum wins.
    A row's noise depends on its seed and position only, so a draw does not depend on the batch it is computed in; it
    is computed from integer hashes by operations that a CUDA graph can capture, and is the same on every device up to
    the last bits of a logarithm.
    """
    return scores(logits, temperature, seeds, positions).argmax(dim=-1)


def scores(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor) -> Tensor:
    """[N, vocab], in units of logits: the token with the highest one of a row is the row's."""
    if temperature == 0:
        return logits
    return logits + temperature * gumbel_noise(seeds, positions, logits.shape[-1])  # finite, however cold


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [N, vocab] in float32."""
    row = _mix(_mix(_mix(seeds & _MASK) ^ (seeds >> 32 & _MASK)) ^ (positions & _MASK))
    column = _mix(torch.arange(1, vocab_size + 1, device=seeds.device))
    bits = _mix(row[:, None] ^ column)
    # The largest noise comes from the smallest numbers, which floats resolve best. Never 0 and never 1.
    uniform = ((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -(-torch.log1p(-uniform)).log()


def _mix(bits: Tensor) -> Tensor:
    """A bijection of 32 bits, held in int64 where no product overflows, in which every input bit moves every output
    bit (constants: C. Wellons, "hash-prospector", the two-round function with a bias of 0.11)."""
    bits = (bits ^ bits >> 16) * 0x21F0AAAD & _MASK
    bits = (bits ^ bits >> 15) * 0x735A2D97 & _MASK
    return bits ^ bits >> 15
