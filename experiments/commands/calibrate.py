"""``kvtwin calibrate``: measure how long steps take on a device, and write a step-time model that predicts them."""

from __future__ import annotations

from kvtwin.experiments.options.calibrate import CalibrateOptions

OPTIONS = CalibrateOptions

EPILOGUE = """\
examples:
  kvtwin calibrate --out laptop.yaml
  kvtwin calibrate --device cuda --model Llama-3.1-8B --out my-gpu.yaml
  kvtwin replay TRACE --model tiny --num-gpu-blocks-override 2000 --step-time laptop.yaml
"""


def run(options: CalibrateOptions) -> int:
    """Measure, fit, print the errors on steps that were held out, and write the file."""
    from kvtwin.experiments.calibration.command import calibrate_as_asked

    return calibrate_as_asked(options)
