"""What to do where a model does not fit: more GPUs, a quantised checkpoint, or another GPU."""

from __future__ import annotations

from dataclasses import replace

from kvtwin.engine.sizing.cache_plan import format_gib
from kvtwin.engine.sizing.group_planning import NotEnoughMemoryError, SizingError
from kvtwin.engine.sizing.model_shape import ModelShape, WeightFormat
from kvtwin.experiments.catalogue.gpus import gpu_names, load_gpu
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.setup.sizing import SizingInputs, plan_sizing, resolve_inputs
from kvtwin.experiments.setup.speculation import Drafting

_TENSOR_PARALLEL_SIZES = (2, 4, 8, 16, 32)


def explained(error: SizingError, inputs: SizingInputs, options: SizingOptions, drafting: Drafting | None) -> str:
    """vLLM's message, after what fits instead where memory is missing and a budget was counted."""
    if not isinstance(error, NotEnoughMemoryError) or not inputs.budgets or inputs.gpu is None:
        return str(error)
    found = (_more_gpus(options, drafting), _fp8(inputs, options, drafting), _another_gpu(inputs, options, drafting))
    remedies = ", or ".join(advice for advice in found if advice)
    remedy = f" What fits: {remedies}." if remedies else ""
    budget = min(inputs.budgets, key=lambda budget: budget.available_bytes)
    weights = sum(item.num_bytes for item in budget.items if item.name == "weights")
    if weights < budget.requested_bytes:
        return f"{error}{remedy}"
    return (
        f"{format_gib(weights)} GiB of weights per GPU are more than the {format_gib(budget.requested_bytes)} GiB that "
        f"--gpu-memory-utilization {budget.utilization} leaves of {inputs.gpu.name}.{remedy} vLLM says: {error}"
    )


def _fits(options: SizingOptions, drafting: Drafting | None) -> bool:
    try:
        plan_sizing(resolve_inputs(options, drafting))
    except (SizingError, UserError):
        return False
    return True


def _more_gpus(options: SizingOptions, drafting: Drafting | None) -> str | None:
    for size in _TENSOR_PARALLEL_SIZES:
        if size > options.tensor_parallel_size and _fits(replace(options, tensor_parallel_size=size), drafting):
            return f"-tp {size}"
    return None


def _fp8(inputs: SizingInputs, options: SizingOptions, drafting: Drafting | None) -> str | None:
    """A checkpoint whose matrices are quantised to 8 bits, where this one is not."""
    if inputs.shape.quantization or options.weight_bytes is not None or options.pipeline_parallel_size > 1:
        return None
    for size in (options.tensor_parallel_size, *_TENSOR_PARALLEL_SIZES):
        num_bytes = _in_fp8(inputs.shape).weight_bytes(size)
        tried = replace(options, weight_bytes=num_bytes, tensor_parallel_size=size)
        if size >= options.tensor_parallel_size and _fits(tried, drafting):
            more = f" with -tp {size}" if size > options.tensor_parallel_size else ""
            return f"an fp8 checkpoint{more} ({format_gib(num_bytes)} GiB per GPU)"
    return None


def _in_fp8(shape: ModelShape) -> ModelShape:
    return replace(shape, weight_format=WeightFormat("fp8", 1.0, 1.0, float(shape.dtype_bytes)))


def _another_gpu(inputs: SizingInputs, options: SizingOptions, drafting: Drafting | None) -> str | None:
    """The smallest GPU of the catalogue on which it fits."""
    assert inputs.gpu is not None
    larger = [gpu for gpu in map(load_gpu, gpu_names()) if gpu.memory_bytes > inputs.gpu.memory_bytes]
    for gpu in sorted(larger, key=lambda gpu: gpu.memory_bytes):
        if _fits(replace(options, gpu=gpu.name), drafting):
            return f"--gpu {gpu.name}"
    return None
