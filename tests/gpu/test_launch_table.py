"""Launch constants, and what is refused in one line; no kernel is compiled here."""

from dataclasses import replace

import pytest
import torch

from kvtwin.gpu.decoder_config import TINY
from kvtwin.gpu.device_model import DeviceModel
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.kernels.launch_table import BLOCK_SIZES, GROUPS, launch_constants

SHAPE = {
    "arch": 90,
    "dtype": torch.bfloat16,
    "head_dim": 128,
    "num_query_heads": 32,
    "num_kv_heads": 8,
    "block_size": 16,
}


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_every_supported_shape_has_constants(arch, dtype, head_dim):
    for group in GROUPS:
        for block_size in BLOCK_SIZES:
            constants = launch_constants(arch, dtype, head_dim, 2 * group, 2, block_size)
            assert constants.prefill_rows >= group
            assert constants == launch_constants(80 if arch < 90 else 90, dtype, head_dim, 1, 1, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": 75}, "compute capability 8.0 or newer, not 7.5"),
        ({"dtype": torch.float64}, "not torch.float64"),
        ({"dtype": torch.float8_e4m3fn}, "not torch.float8_e4m3fn"),
        ({"head_dim": 96}, "not 96 in torch.bfloat16"),
        ({"head_dim": 256, "dtype": torch.float32}, "not 256 in torch.float32"),
        ({"block_size": 8}, "not 8"),
        ({"block_size": 48}, "not 48"),
        ({"num_query_heads": 30}, "not 30 to 8"),
        ({"num_query_heads": 4}, "not 4 to 8"),
        ({"num_query_heads": 72}, "not 72 to 8"),
    ],
    ids=str,
)
def test_anything_else_is_refused_in_one_line(change, message):
    with pytest.raises(DeviceError) as error:
        launch_constants(**(SHAPE | change))
    assert str(error.value).endswith(message)
    assert "\n" not in str(error.value)


def test_a_model_without_kernels_is_refused_before_its_weights_are_loaded(monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed: it exists for Linux only")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = replace(TINY, head_dim=96)
    with pytest.raises(DeviceError, match=r"not 96 in torch\.float32$"):
        DeviceModel.load(config, torch.device("cuda"))
