"""From the options to a step-time model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvtwin.experiments.catalogue.interconnects import load_interconnect
from kvtwin.experiments.catalogue.models import load_model_config
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.experiments.operator_tables.aiconfigurator import Question
from kvtwin.experiments.operator_tables.kept import aic_step_time
from kvtwin.experiments.options.step_time import StepTimeOptions
from kvtwin.experiments.setup.sizing import SizingInputs
from kvtwin.sim.adjusted import AdjustedStepTime
from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.gpu_spec import GpuSpec
from kvtwin.sim.interconnect import Traffic
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.roofline import STEP_OVERHEAD_NS, RooflineStepTime, decode_attention, sampling_ns_per_token
from kvtwin.sim.server_step_time import HostTime, ServerStepTime
from kvtwin.sim.step_time import StepTimeModel

_LINEAR_EXAMPLE = Path(__file__).parents[1] / "configs" / "step-time-linear.yaml"


def step_time_model(options: StepTimeOptions, inputs: SizingInputs) -> StepTimeModel:
    """The step-time model that ``options`` choose. UserError: an unknown one, a bad file, or no GPU."""
    name = options.step_time
    if name in COMPUTED:
        return server_step_time(name, options, inputs)
    path = _LINEAR_EXAMPLE if name == "linear" else Path(name)
    if name != "zero" and not os.path.isfile(path):
        known = ", ".join((*COMPUTED, "zero", "linear"))
        raise UserError(f"--step-time: expected {known} or a YAML file, got {name!r}")
    data = {} if name == "zero" else read_yaml(path)
    if isinstance(data, dict) and data.get("model") == "adjusted":
        return _adjusted(path, data, options, inputs)
    if options.interconnect is not None:
        raise UserError(f"--interconnect: needs --step-time {' or '.join(COMPUTED)}; others hold all of a step's time")
    return LinearStepTime({}) if name == "zero" else load_step_time(path)


def server_step_time(name: str, options: StepTimeOptions, inputs: SizingInputs) -> ServerStepTime:
    """What ``name`` of ``COMPUTED`` computes, with interconnect and host. UserError: it cannot."""
    traffic = _traffic(options, inputs)
    return ServerStepTime(COMPUTED[name](inputs), traffic, HostTime(), async_scheduling=inputs.async_scheduling)


def _adjusted(path: Path, data: dict[str, Any], options: StepTimeOptions, inputs: SizingInputs) -> StepTimeModel:
    """A computed model, as `kvtwin calibrate --from` fitted it to a server."""
    known = ("model", "base", "decode_scale", "prefill_scale", "step_ns", "measured")
    if unknown := set(data) - set(known):
        raise UserError(f"{path}: unknown field {min(map(str, unknown))}; known: {', '.join(known)}")
    base = data.get("base")
    if base not in COMPUTED:
        raise UserError(f"{path}: base: expected {' or '.join(COMPUTED)}, got {base!r}")
    numbers = {name: data.get(name) for name in ("decode_scale", "prefill_scale")}
    numbers["step_ns"] = data.get("step_ns", 0)
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{path}: {name}: expected a number, got {value!r}")
    try:
        return AdjustedStepTime(server_step_time(base, options, inputs), **numbers, measured=data.get("measured"))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _roofline(inputs: SizingInputs) -> StepTimeModel:
    return RooflineStepTime(
        inputs.shape,
        _gpu("roofline", inputs),
        kv_cache_dtype=inputs.kv_cache_dtype,
        tensor_parallel_size=inputs.tensor_parallel_size,
        data_parallel_size=inputs.data_parallel_size,
    )


def _aic(inputs: SizingInputs) -> StepTimeModel:
    gpu = _gpu("aic", inputs)
    config, name = load_model_config(inputs.shape.name)
    return aic_step_time(
        Question(
            model=name,
            config=config,
            gpu=gpu.name,
            tensor_parallel_size=inputs.tensor_parallel_size,
            dtype=inputs.shape.dtype,
            kv_cache_dtype=inputs.kv_cache_dtype,
            data_parallel_size=inputs.data_parallel_size,
            enable_expert_parallel=inputs.enable_expert_parallel,
        ),
        decode_attention=decode_attention(inputs.shape, gpu, inputs.tensor_parallel_size),
        sampling_ns_per_token=sampling_ns_per_token(inputs.shape, gpu),
        step_overhead_ns=STEP_OVERHEAD_NS,
    )


COMPUTED: Mapping[str, Callable[[SizingInputs], StepTimeModel]] = {"roofline": _roofline, "aic": _aic}
"""What computes the device's time from model and GPU; interconnect and host are added."""


def _gpu(model: str, inputs: SizingInputs) -> GpuSpec:
    if inputs.gpu is None:
        raise UserError(f"--step-time {model}: needs --gpu")
    return inputs.gpu


def _traffic(options: StepTimeOptions, inputs: SizingInputs) -> Traffic | None:
    """None: one GPU computes a stage alone."""
    tp, dp = inputs.tensor_parallel_size, inputs.data_parallel_size
    if tp * dp == 1:
        if options.interconnect is not None:
            raise UserError("--interconnect: needs --tensor-parallel-size above 1, or ranks that share experts")
        return None
    gpu = inputs.gpu
    kind = options.interconnect or (gpu.interconnect if gpu else "") or _FALLBACK
    return Traffic(
        inputs.shape,
        layers=load_interconnect(kind, tp) if tp > 1 else None,
        experts=load_interconnect(kind, tp * dp) if dp > 1 else None,
        data_parallel_size=dp,
    )


_FALLBACK = "pcie-gen4"
"""Links of a GPU whose file does not name any."""


def step_time_title(step_time: StepTimeModel) -> str:
    """Its name; of one that was measured, with what and where, which need not be what is simulated."""
    measured = step_time.measured if isinstance(step_time, CalibratedStepTime | AdjustedStepTime) else {}
    origin = " on ".join(str(measured[key]) for key in ("model", "device") if key in measured)
    origin = str(step_time.describe().get("tables", origin))
    return f"{step_time.name} ({origin})" if origin else step_time.name


def step_time_notes(step_time: StepTimeModel) -> list[str]:
    """What is assumed of the links between GPUs, and how wrong the model was where a server was measured."""
    facts = step_time.describe()
    notes = []
    if "interconnect" in facts:
        sources = dict.fromkeys(
            facts[name] for name in ("interconnect_source", "expert_interconnect_source") if name in facts
        )
        notes.append(f"interconnect {facts['interconnect']} (--interconnect): {'; '.join(map(str, sources))}")
    if error := KNOWN_ERRORS.get(step_time.name):
        notes.append(f"step times by {step_time.name}: {error} (docs/accuracy.md)")
    return notes


KNOWN_ERRORS = {
    "roofline": "mean TPOT of four measured servers came out 2 to 15 % too short",
    "aic": "mean TPOT of three measured servers came out 2 to 12 % too short",
}
"""By how much models are known to miss whose times come from elsewhere; docs/accuracy.md has the figures."""


def load_step_time(path: Path) -> StepTimeModel:
    """The linear or calibrated step-time model of a YAML file. UserError names the file and what is wrong."""
    data = read_yaml(path)
    model = data.get("model") if isinstance(data, dict) else None
    try:
        if model == "linear":
            return LinearStepTime({key: value for key, value in data.items() if key != "model"})
        if model == "calibrated":
            return CalibratedStepTime(data)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: {error}") from None
    raise UserError(f"{path}: expected model: linear, calibrated or adjusted, with its coefficients")
