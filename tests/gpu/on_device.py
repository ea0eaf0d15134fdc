"""The kernels against float64 on the device at hand: run by ``gpu/check.sh``, and on a CPU by the tests.

Everything that a case has no right to read is NaN (:mod:`tests.gpu.paged_cases`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvtwin.gpu.attention import Attention, LayerCache
from kvtwin.gpu.benchmark.options import parse_options
from kvtwin.gpu.layer_ops import LayerOps, TorchLayerOps
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.layer_op_cases import CHECK_NAMES, CHECKS
from tests.gpu.paged_cases import LIMITS, SHAPES, PagedCase, PagedStep, step_of

LIMIT_S = 30
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

FIRST_CASES = [
    PagedCase(queries=(1, 1, 1, 40), contexts=(1, 700, 65, 130), dtype=BF16, num_kv_heads=8, group=4, head_dim=128),
    PagedCase(queries=(1, 1, 70), contexts=(2000, 17, 70), dtype=BF16, num_kv_heads=8, group=4, head_dim=64),
    PagedCase(queries=(1, 1, 33), contexts=(100, 64, 90), dtype=FP32, num_kv_heads=3, group=3, head_dim=64),
    PagedCase(queries=(1, 1, 50), contexts=(300, 31, 50), dtype=FP16, group=8, head_dim=128, block_size=64),
    PagedCase(queries=(1, 1, 20), contexts=(129, 3, 55), dtype=FP32, group=1, head_dim=128, block_size=32),
]
"""Of real models. Then come all other shapes, as many as there is time for."""


def main() -> int:
    """Exit code 1 if anything is wrong."""
    options = parse_options(__doc__)
    attention, ops = backend(options.device)
    checks: list[tuple[str, Callable[[], float]]] = [
        (str(case), partial(attention_excess, case, attention, options.device)) for case in FIRST_CASES
    ]
    checks += [
        (
            f"{name} {dtype}".replace("torch.", ""),
            partial(layer_op_excess, check, MovedOps(ops, options.device), dtype, shape),
        )
        for (check, shape), name in zip(CHECKS, CHECK_NAMES, strict=True)
        for dtype in (BF16, FP32)
    ]
    checks += [(str(case), partial(attention_excess, case, attention, options.device)) for case in SHAPES[::7]]
    started_s = time.monotonic()
    num_done, wrong, largest = 0, 0, 0.0
    for name, check in checks:
        if time.monotonic() - started_s > LIMIT_S:
            break
        excess = check()
        num_done += 1
        if not excess <= 1:
            wrong += 1
            options.results.add("correctness", name, wrong=True, error_of_limit=excess)
        largest = max(largest, excess)
    options.results.add(
        "correctness",
        "against float64",
        cases=num_done,
        left_out=len(checks) - num_done,
        wrong=wrong,
        error_of_limit=largest,
    )
    return 1 if wrong else 0


def backend(device: torch.device) -> tuple[Attention, LayerOps]:
    """What a model on this device computes with."""
    if device.type == "cpu":
        return TorchAttention(), TorchLayerOps()
    from kvtwin.gpu.triton_attention import TritonAttention, arch_of
    from kvtwin.gpu.triton_layer_ops import TritonLayerOps

    return TritonAttention(arch_of(device)), TritonLayerOps()


def attention_excess(case: PagedCase, attention: Attention, device: torch.device) -> float:
    """The error of a case, in units of what it may be."""
    return moved_step(step_of(case), device).error(attention) / LIMITS[case.dtype]


def layer_op_excess(check: Callable[..., None], ops: LayerOps, dtype: torch.dtype, shape: tuple[int, ...]) -> float:
    """0 or infinity: the check itself says whether the error is too large."""
    try:
        check(ops, dtype, shape)
    except AssertionError:
        return float("inf")
    return 0.0


def moved_step(step: PagedStep, device: torch.device) -> PagedStep:
    """A case on a device, every tensor with the strides it had."""
    batch = {
        field.name: moved(value, device)
        for field in fields(step.batch)
        if isinstance(value := getattr(step.batch, field.name), Tensor)
    }
    return PagedStep(
        query=moved(step.query, device),
        keys=moved(step.keys, device),
        values=moved(step.values, device),
        layer=LayerCache(moved(step.layer.keys, device), moved(step.layer.values, device)),
        batch=replace(step.batch, **batch),
        expected=step.expected.to(device),
    )


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, as the same part of the same larger one."""
    whole = tensor if tensor._base is None else tensor._base
    return whole.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class MovedOps:
    """Layer operations on a device, for tensors that are on the CPU."""

    def __init__(self, ops: LayerOps, device: torch.device) -> None:
        self._ops = ops
        self._device = device

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            result = getattr(self._ops, name)(*(self._there(argument) for argument in arguments))
            return tuple(each.cpu() for each in result) if isinstance(result, tuple) else result.cpu()

        return call

    def _there(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return moved(argument, self._device)
        return type(argument)(*(self._there(part) for part in argument)) if isinstance(argument, tuple) else argument


if __name__ == "__main__":
    sys.exit(main())
