"""Writing to slots and copying blocks: bit for bit."""

import pytest
import torch

from kvtwin.gpu.triton_attention import TritonAttention
from tests.gpu.paged_cases import DTYPES, PagedCase, empty_layer

TRITON = TritonAttention(90)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 16, 37])
@pytest.mark.parametrize(("num_kv_heads", "head_dim", "block_size"), [(2, 32, 16), (1, 128, 32), (3, 64, 64)])
def test_every_token_goes_to_its_slot_and_nothing_else_changes(dtype, num_tokens, num_kv_heads, head_dim, block_size):
    random = torch.Generator().manual_seed(num_tokens)
    layer = empty_layer(
        PagedCase(
            queries=(1,),
            contexts=(2 * num_tokens,),
            dtype=dtype,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
        )
    )
    fused = torch.randn(num_tokens, 3 * num_kv_heads, head_dim, generator=random).to(dtype)
    keys, values = fused[:, num_kv_heads : 2 * num_kv_heads], fused[:, 2 * num_kv_heads :]
    slots = torch.randperm(len(layer.keys) * block_size, generator=random)[:num_tokens]
    slots[2::5] = -1
    expected = [each.clone() for each in layer]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0][slot // block_size, slot % block_size] = keys[token]
            expected[1][slot // block_size, slot % block_size] = values[token]
    TRITON.write(keys, values, layer, slots)
    for written, wanted in zip(layer, expected, strict=True):
        assert torch.equal(bits(written), bits(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_kv_heads", "head_dim", "block_size"), [(2, 32, 16), (3, 64, 32), (1, 128, 64)])
@pytest.mark.parametrize("pairs", [[(3, 1)], [(5, 0), (5, 2), (4, 6)]], ids=["one", "a source twice"])
def test_blocks_are_copied_in_every_plane(dtype, num_kv_heads, head_dim, block_size, pairs):
    """Blocks are no multiple of what a program copies."""
    storage = torch.randn(4, 7, block_size, num_kv_heads, head_dim).to(dtype)
    storage[:, 3, 1] = torch.nan  # a slot nobody wrote is copied too
    expected = storage.clone()
    for source, destination in pairs:
        expected[:, destination] = expected[:, source]
    TRITON.copy_blocks(storage, *torch.tensor(pairs).T.contiguous())
    assert torch.equal(bits(storage), bits(expected))
