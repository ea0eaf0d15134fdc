"""The option that chooses how long steps take."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Text


@dataclass(frozen=True, kw_only=True)
class StepTimeOptions:
    """Step time."""

    step_time: str = option(
        "roofline",
        Text("MODEL"),
        "roofline (computed from model and GPU), zero, linear (example coefficients), or a YAML file of coefficients, "
        "such as `kvtwin calibrate` writes",
    )
