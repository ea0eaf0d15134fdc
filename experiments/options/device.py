"""The options that choose a device and a model's weights, shared by the commands that really compute.

torch is imported only when one of them runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvtwin.experiments.catalogue.catalogue import load_model_config
from kvtwin.experiments.errors import UserError
from kvtwin.gpu.errors import DeviceError

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to compute, and with what weights; which model is said by ``--model``."""
    add = parser.add_argument_group("device").add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: torch, one thread, float32; cuda: Triton")
    add(
        "--weights",
        type=Path,
        metavar="PATH",
        help="folder of safetensors, or GGUF file, for the model (else random weights)",
    )


def load_device_model(args: argparse.Namespace, dtype: str = "auto") -> DeviceModel:
    """The model of ``--model`` on ``--device``; on a GPU it computes in ``dtype``, which is the model's with auto.

    UserError: torch or the device is missing, the weights are, or the model is of a kind that is not computed.
    """
    with device_errors():
        from kvtwin.gpu.decoder_config import TINY, read_decoder_config
        from kvtwin.gpu.device_model import DeviceModel, open_device
        from kvtwin.gpu.model_files import read_weights

        device = open_device(args.device)
        is_tiny = args.model == TINY.name and not os.path.exists(args.model)
        config = TINY if is_tiny else read_decoder_config(*load_model_config(args.model))
        if dtype != "auto":
            config = replace(config, dtype=dtype)
        source = read_weights(args.weights, config) if args.weights else None
        return DeviceModel.load(config, device, source=source, seed=args.seed)


@contextmanager
def device_errors() -> Iterator[None]:
    """What a device cannot do is the user's to put right, and so is that torch is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        # The pip of another Python would look for kvtwin where it is not.
        install = f"{sys.executable} -m pip install 'kvtwin[gpu]'"
        raise UserError(f"--device: needs {error.name}, which is not installed: {install}") from None
    except DeviceError as error:
        raise UserError(str(error)) from None
