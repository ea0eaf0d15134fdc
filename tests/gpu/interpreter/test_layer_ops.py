"""The kernels between a decoder's matrix products, against float64."""

import pytest

from kvtwin.gpu.triton_layer_ops import TritonLayerOps
from tests.gpu.layer_op_cases import CHECK_NAMES, CHECKS
from tests.gpu.paged_cases import DTYPES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("check", "shape"), CHECKS, ids=CHECK_NAMES)
def test_layer_operation(check, dtype, shape):
    check(TritonLayerOps(), dtype, shape)
