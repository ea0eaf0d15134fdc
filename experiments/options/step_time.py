"""The option that chooses how long steps take."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Text

STEP_TIME_HELP = (
    "roofline (computed from model and GPU), aic (NVIDIA's measured kernels), zero, linear (example coefficients), "
    "or a YAML file of coefficients, such as `kvtwin calibrate` writes"
)


@dataclass(frozen=True, kw_only=True)
class StepTimeOptions:
    """Step time."""

    step_time: str = option(
        "roofline",
        Text("MODEL"),
        STEP_TIME_HELP,
    )
    interconnect: str | None = option(
        None,
        Text("KIND"),
        "links between tensor-parallel GPUs, for roofline and aic: pcie-host, pcie-gen4, pcie-gen5, pcie-nccl, "
        "nvlink-a100, nvlink-hopper, nvlink-blackwell, or a YAML file (default: the GPU's usual ones)",
    )
