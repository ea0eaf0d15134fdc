"""From the options to a model on a device. torch is imported only when one is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtwin.experiments.catalogue.models import load_model_config
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.device import DeviceOptions
from kvtwin.gpu.errors import DeviceError

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel


def load_device_model(options: DeviceOptions, model: str, seed: int, dtype: str = "auto") -> DeviceModel:
    """``model`` on ``--device``, its random weights from ``seed``; on a GPU it computes in ``dtype`` (auto: its own).

    UserError: torch or the device is missing, the weights are, or the model is of a kind that is not computed.
    """
    with device_errors():
        from kvtwin.gpu.decoder_config import TINY, read_decoder_config
        from kvtwin.gpu.device_model import DeviceModel, open_device
        from kvtwin.gpu.model_files import read_weights

        device = open_device(options.device)
        is_tiny = model == TINY.name and not os.path.exists(model)
        config = TINY if is_tiny else read_decoder_config(*load_model_config(model))
        if dtype != "auto":
            config = replace(config, dtype=dtype)
        source = read_weights(options.weights, config) if options.weights else None
        return DeviceModel.load(config, device, source=source, seed=seed)


@contextmanager
def device_errors() -> Iterator[None]:
    """Turns what a device cannot do, and a missing torch, into a UserError."""
    try:
        yield
    except ModuleNotFoundError as error:
        # The pip of another Python would look for kvtwin where it is not.
        install = f"{sys.executable} -m pip install 'kvtwin[gpu]'"
        raise UserError(f"--device: needs {error.name}, which is not installed: {install}") from None
    except DeviceError as error:
        raise UserError(str(error)) from None
