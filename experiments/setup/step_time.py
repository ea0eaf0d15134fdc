"""From the options to a step-time model."""

from __future__ import annotations

import os
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.experiments.setup.sizing import SizingInputs
from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.roofline import RooflineStepTime
from kvtwin.sim.step_time import StepTimeModel

_LINEAR_EXAMPLE = Path(__file__).parents[1] / "configs" / "step-time-linear.yaml"


def step_time_model(name: str, inputs: SizingInputs) -> StepTimeModel:
    """The step-time model called ``name``. UserError: an unknown one, or a bad file."""
    if name == "zero":
        return LinearStepTime({})
    if name == "roofline":
        if inputs.gpu is None:
            raise UserError("--step-time roofline: needs --gpu")
        return RooflineStepTime(
            inputs.shape,
            inputs.gpu,
            kv_cache_dtype=inputs.kv_cache_dtype,
            tensor_parallel_size=inputs.tensor_parallel_size,
        )
    path = _LINEAR_EXAMPLE if name == "linear" else Path(name)
    if not os.path.isfile(path):
        raise UserError(f"--step-time: expected roofline, zero, linear or a YAML file, got {name!r}")
    return load_step_time(path)


def step_time_title(step_time: StepTimeModel) -> str:
    """Its name; of one that was measured, with what and where, which need not be what is simulated."""
    measured = step_time.measured if isinstance(step_time, CalibratedStepTime) else {}
    origin = " on ".join(str(measured[key]) for key in ("model", "device") if key in measured)
    return f"{step_time.name} ({origin})" if origin else step_time.name


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
    raise UserError(f"{path}: expected model: linear or calibrated, with its coefficients")
