"""The attention kernels against float64."""

import pytest
import torch

from kvtwin.gpu.attention import LayerCache
from kvtwin.gpu.kernels import decode
from kvtwin.gpu.triton_attention import TritonAttention
from tests.gpu.paged_cases import LIMITS, SHAPES, PagedCase, empty_layer, step_of
from tests.parts import slow_but

TRITON = TritonAttention(90)


def check(case):
    assert step_of(case).error(TRITON) <= LIMITS[case.dtype]


@pytest.mark.parametrize("case", slow_but(SHAPES[::54], SHAPES), ids=str)
def test_a_mixed_step_of_every_shape(case):
    check(case)


RARER_SHAPES = [
    {"head_dim": 256, "dtype": torch.bfloat16},
    {"head_dim": 256, "dtype": torch.float16, "block_size": 256},
    {"group": 16, "num_kv_heads": 1},
    {"group": 5, "block_size": 128},
    {"group": 6, "head_dim": 64, "dtype": torch.float16},
    {"group": 7, "num_kv_heads": 3},
]


@pytest.mark.parametrize("shape", slow_but(RARER_SHAPES[1:4:2], RARER_SHAPES), ids=str)
def test_rarer_shapes(shape):
    check(PagedCase(queries=(1, 20), contexts=(70, 50), **shape))


@pytest.mark.parametrize("num_splits", slow_but([3], [1, 2, 3, 5, 8, 64]))
@pytest.mark.parametrize("min_split_tokens", [32, 64])
def test_any_number_of_splits(monkeypatch, num_splits, min_split_tokens):
    """More than there are tokens for, and fewer; split at edges of tiles that are no edges of blocks."""
    monkeypatch.setattr(decode, "count_splits", lambda *_: num_splits)
    monkeypatch.setattr(decode, "SPLITS_AT_ONCE", 2)
    monkeypatch.setattr(decode, "MIN_SPLIT_TOKENS", decode.tl.constexpr(min_split_tokens))
    check(PagedCase(queries=(1, 1, 1), contexts=(1, 64, 193), num_kv_heads=1, seed=3))


@pytest.mark.slow
def test_splits_of_a_long_context():
    """One sequence has all its splits and the other has one; a few tokens are left for a last, short split."""
    check(PagedCase(queries=(1, 1), contexts=(64 * 256 + 70, 3), num_kv_heads=1, group=1, block_size=64))


EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257]


@pytest.mark.parametrize("context", slow_but([16, 33], EDGES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_decode_at_edges_of_blocks_tiles_and_splits(context, dtype):
    check(PagedCase(queries=(1, 1), contexts=(context, 258 - context), num_kv_heads=1, dtype=dtype))


@pytest.mark.parametrize("num_queries", slow_but([33], [2, 31, 32, 33, 63, 64, 65]))
@pytest.mark.parametrize("before", [0, 1, 63, 64, 65])
def test_prefill_at_edges_of_tiles_and_programs(num_queries, before):
    """A program has 32 queries here, in tiles of 64 tokens."""
    check(
        PagedCase(
            queries=(3, num_queries), contexts=(3, before + num_queries), num_kv_heads=1, group=4, dtype=torch.float16
        )
    )


@pytest.mark.slow
def test_prefill_of_many_short_sequences():
    """Most share a program's worth of queries, and every one still has its own."""
    queries = (2, 3, 2, 5, 2, 7, 40, 2, 2)
    contexts = tuple(count + 10 * index for index, count in enumerate(queries))
    check(PagedCase(queries=queries, contexts=contexts, num_kv_heads=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_cache_laid_out_block_by_block(dtype):
    """Heads before tokens, keys and values of all layers of a block together: strides are free."""
    case = PagedCase(queries=(1, 12), contexts=(40, 60), dtype=dtype)
    num_blocks = len(empty_layer(case).keys)
    storage = torch.full((num_blocks, 3, 2, case.num_kv_heads, case.block_size, case.head_dim), torch.nan, dtype=dtype)
    layer = LayerCache(*storage[:, 1].permute(1, 0, 3, 2, 4))
    assert step_of(case, layer).error(TRITON) <= LIMITS[dtype]
    assert storage[:, [0, 2]].isnan().all()


def test_a_cache_of_more_elements_than_32_bits_count():
    """Virtual memory: only what is written takes room."""
    torch.use_deterministic_algorithms(False)  # which would fill all of it
    case = PagedCase(queries=(1, 12), contexts=(40, 60), num_kv_heads=1, dtype=torch.float16, seed=1)
    num_blocks, stride = len(empty_layer(case).keys), 2**28
    storage = torch.empty(num_blocks * stride, dtype=case.dtype)
    size = (num_blocks, case.block_size, 1, case.head_dim)
    layer = LayerCache(*(storage.as_strided(size, (stride, 32, 32, 1), offset) for offset in (0, 2**20)))
    for each in layer:
        each.fill_(torch.nan)
    step = step_of(case, layer)
    assert (step.batch.block_tables[:, :3].amax(1) * stride >= 2**31).all()  # of both sequences
    assert step.error(TRITON) <= LIMITS[case.dtype]


@pytest.mark.parametrize("queries", [(1, 1), (9, 9)], ids=["decode", "prefill"])
@pytest.mark.parametrize("sequence", slow_but([1], [0, 1]))
def test_a_wrong_table_entry_is_noticed(queries, sequence):
    """What the other tests would miss if their comparison were blind."""
    step = step_of(PagedCase(queries=queries, contexts=(90, 75), num_kv_heads=1))
    assert step.error(TRITON) <= LIMITS[torch.float32]
    other = int(step.batch.block_tables[1 - sequence, 0])
    assert step.with_table_entry(sequence, 2, other).error(TRITON) > 100 * LIMITS[torch.float32]
    nobodys = len(step.layer.keys) - 1
    assert step.with_table_entry(sequence, 2, nobodys).run(TRITON).isnan().any()
