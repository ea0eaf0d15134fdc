"""What a prefix cache may know a request's blocks by, whatever its capacity.

A request is a chain of *runs*: blocks that all requests with the run's name share from its start on. A run's name
stands for everything before it too, so equal names mean equal prefixes, and requests that share a run share all runs
before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any

from kvtwin.workloads.mixing import GOLDEN_GAMMA, finalise
from kvtwin.workloads.request_record import RequestRecord

Run = tuple[int, int]
"""A name of 64 bits, and how many of its blocks the request has.

Two of ten million names are equal by chance with a probability of 3 in a million.
"""


@dataclass(slots=True)
class Chain:
    """The full blocks of one request, in order: named runs, then blocks that no other request can have."""

    runs: list[Run]
    num_private_blocks: int
    num_prompt_blocks: int
    max_hit_blocks: int
    """Blocks that may be hit: the prompt's last token is always computed (specification, section 3.2)."""


def prefix_chain(record: RequestRecord, block_size: int) -> Chain:
    """The chain of ``record`` in blocks of ``block_size`` tokens.

    A block is its tokens, everything before it, and what vLLM hashes beside tokens (LoRA, salt, images). Outputs are
    named where their tokens, or ids for them, are known; the last one's KV is never computed.
    """
    return chain_of(record, list(_runs(record, block_size)), block_size)


def chain_of(record: RequestRecord, runs: list[Run], block_size: int) -> Chain:
    """The chain of ``record`` with these named runs."""
    num_blocks = (record.prompt_tokens + max(record.output_tokens - 1, 0)) // block_size
    return Chain(
        runs,
        num_blocks - sum(number for _, number in runs),
        record.prompt_tokens // block_size,
        (record.prompt_tokens - 1) // block_size,
    )


def _runs(record: RequestRecord, block_size: int) -> Iterator[Run]:
    if record.token_ids is not None:
        return _token_runs(record, record.token_ids, block_size)
    if record.hash_ids is not None:
        return _id_runs(record, record.hash_ids, block_size)
    num_blocks = record.prompt_tokens // block_size
    if record.n > 1 and num_blocks:  # its samples share the prompt, whatever it is
        return iter([(_name((record.source, record.request_id)), num_blocks)])
    return iter(())


def _token_runs(record: RequestRecord, token_ids: Iterable[int], block_size: int) -> Iterator[Run]:
    """A run per block."""
    tokens = array("q", token_ids)
    tokens.extend((record.output_token_ids or ())[:-1])
    block_bytes = block_size * tokens.itemsize
    data = memoryview(tokens).cast("B")
    name = _name((record.lora_name, record.cache_salt or None))
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        images = _images_in(record, start // tokens.itemsize, block_size) if record.images else b""
        content = b"%x,%b" % (name, images)
        name = int.from_bytes(blake2b(content + data[start : start + block_bytes], digest_size=8).digest())
        yield name, 1


def _id_runs(record: RequestRecord, prefix_ids: Iterable[int], block_size: int) -> Iterator[Run]:
    """A run per id: a block belongs to the id that holds its last token. An image begins another run."""
    name = _name((record.lora_name, record.cache_salt or None, record.hash_block_tokens))
    num_tokens = min(record.num_named_tokens, record.prompt_tokens + max(record.output_tokens - 1, 0))
    first_block = id_start = 0
    for prefix_id, id_end in zip(prefix_ids, record.id_ends, strict=True):
        end_block = min(id_end, num_tokens) // block_size
        name = finalise(name * GOLDEN_GAMMA + prefix_id)
        if record.hash_id_ends is not None:
            name = finalise(name * GOLDEN_GAMMA + id_start)  # the same id may begin elsewhere in another prompt
            id_start = id_end
        if record.images:
            ends = range((first_block + 1) * block_size, end_block * block_size + 1, block_size)
            for images, blocks in groupby(ends, partial(_images_before, record)):
                yield _name((name, images)) if images else name, sum(1 for _ in blocks)
        elif end_block > first_block:
            yield name, end_block - first_block
        first_block = end_block


def _name(what: Any) -> int:
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest())


def _images_before(record: RequestRecord, end_tokens: int) -> tuple[tuple[str, int], ...]:
    return tuple((i.content_hash, i.offset_tokens) for i in record.images if i.offset_tokens < end_tokens)


def _images_in(record: RequestRecord, start: int, block_size: int) -> bytes:
    """The images that overlap the block of tokens from ``start`` on, and where they begin."""
    found = [
        (image.content_hash, image.offset_tokens - start)
        for image in record.images
        if image.offset_tokens < start + block_size and image.offset_tokens + image.length_tokens > start
    ]
    return repr(found).encode() if found else b""
