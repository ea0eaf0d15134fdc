"""What the layer operations of a backend must come to, in float64."""

import torch

from kvtwin.gpu.layer_ops import LayerOps, Rotation

EPSILON = 1e-5
LIMITS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Relative to the largest value; the interpreter cuts bfloat16 off where others round it."""


def check_norm(ops: LayerOps, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """``shape`` of rows or of heads; they are part of a wider tensor."""
    wide = _random(dtype, shape[0], *(2 * size for size in shape[1:-1]), 3 * shape[-1])
    values = wide[(slice(None), *(slice(size) for size in shape[1:]))]
    weight = _random(dtype, shape[-1])
    _check(ops.norm(values, weight, EPSILON), _norm(values, weight))


def check_add_and_norm(ops: LayerOps, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    hidden, update, weight = _random(dtype, *shape), _random(dtype, *shape), _random(dtype, shape[1])
    before = hidden.clone(), update.clone()
    total, normed = ops.add_and_norm(hidden, update, weight, EPSILON)
    _check(total, hidden.double() + update.double())
    _check(normed, _norm(total, weight))
    assert torch.equal(hidden, before[0])
    assert torch.equal(update, before[1])


def check_rotate(ops: LayerOps, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """As complex numbers, of which rope turns each by its angle."""
    num_tokens, num_heads, head_dim = shape
    heads = _random(dtype, num_tokens, 2 * num_heads, head_dim)[:, num_heads:]
    angles = 100 * _random(torch.float32, num_tokens, head_dim // 2)
    turned = torch.complex(*heads.double().chunk(2, dim=-1)) * torch.exp(1j * angles.double())[:, None]
    _check(ops.rotate(heads, Rotation(angles.cos(), angles.sin())), torch.cat([turned.real, turned.imag], dim=-1))


def check_gate(ops: LayerOps, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    gate_up = 4 * _random(dtype, shape[0], 2 * shape[1])
    gate, up = gate_up.double().chunk(2, dim=-1)
    _check(ops.gate(gate_up), gate / (1 + torch.exp(-gate)) * up)


CHECKS = [
    (check_norm, (3, 576)),
    (check_norm, (5, 3, 64)),
    (check_norm, (33, 2, 128)),
    (check_norm, (1, 8192)),
    (check_add_and_norm, (4, 256)),
    (check_add_and_norm, (9, 1000)),
    (check_rotate, (1, 1, 128)),
    (check_rotate, (7, 3, 64)),
    (check_rotate, (40, 2, 32)),
    (check_gate, (1, 688)),
    (check_gate, (3, 1536)),
]
CHECK_NAMES = [f"{check.__name__.removeprefix('check_')} {shape}" for check, shape in CHECKS]


def _random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    values = values.double()
    return values / (values.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double()


def _check(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.shape == expected.shape
    assert (result.double() - expected).abs().max() <= LIMITS[result.dtype] * expected.abs().max()
