"""The plain torch backend, against the same float64 results as the kernels."""

import pytest
import torch

from kvtwin.gpu.layer_ops import TorchLayerOps
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.layer_op_cases import CHECK_NAMES, CHECKS
from tests.gpu.paged_cases import DTYPES, LIMITS, SHAPES, PagedCase, step_of

TORCH = TorchAttention()


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_a_mixed_step_of_every_shape(case):
    assert step_of(case).error(TORCH) <= LIMITS[case.dtype]


@pytest.mark.parametrize("queries", [(1, 1), (9, 9)], ids=["decode", "prefill"])
def test_a_wrong_table_entry_is_noticed(queries):
    step = step_of(PagedCase(queries=queries, contexts=(90, 75)))
    assert step.error(TORCH) <= LIMITS[torch.float32]
    assert step.with_table_entry(0, 2, int(step.batch.block_tables[1, 0])).error(TORCH) > 100 * LIMITS[torch.float32]
    assert step.with_table_entry(0, 2, len(step.layer.keys) - 1).run(TORCH).isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("check", "shape"), CHECKS, ids=CHECK_NAMES)
def test_layer_operation(check, dtype, shape):
    check(TorchLayerOps(), dtype, shape)


def test_blocks_are_copied_in_every_plane():
    storage = torch.randn(4, 7, 16, 2, 32)
    before = storage.clone()
    TORCH.copy_blocks(storage, torch.tensor([5, 5, 4]), torch.tensor([0, 2, 6]))
    assert torch.equal(storage, before[:, [5, 1, 5, 3, 4, 5, 4]])
