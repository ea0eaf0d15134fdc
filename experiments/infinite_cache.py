"""An infinite prefix cache: what could be hit of a workload if nothing were ever evicted."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from workloads.request_record import RequestRecord


class InfiniteCache:
    """A prefix cache that never evicts: which full blocks of a prompt were seen in an earlier request.

    A block is its tokens, everything before it, and what vLLM hashes beside tokens (LoRA, salt, images).
    Known output tokens are cached too, but for the last, whose KV is never computed.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._seen_blocks: set[bytes] = set()
        self._seen_tokens_of_id: dict[tuple[Any, ...], int] = {}
        self._kinds: dict[tuple[int | None, bytes], int] = {}
        """What equal ids must have in common besides: how many tokens they stand for, LoRA and salt."""

    def add(self, record: RequestRecord) -> tuple[int, int]:
        """Look ``record`` up, then store it; return its full blocks seen before, and how many of them lead.

        The prompt must be known (``record.knows_prefix``).
        """
        if record.token_ids is not None:
            return self._add_tokens(record, record.token_ids)
        return self._add_hash_ids(record)

    def _add_tokens(self, record: RequestRecord, token_ids: Iterable[int]) -> tuple[int, int]:
        tokens = array("q", token_ids)
        tokens.extend((record.output_token_ids or ())[:-1])
        block_bytes = self.block_size * tokens.itemsize
        data = memoryview(tokens).cast("B")
        key = _root(record)
        blocks = []
        for start in range(0, len(data) - block_bytes + 1, block_bytes):
            extra = _images_in(record, start // tokens.itemsize, self.block_size) if record.images else b""
            key = blake2b(key + extra + data[start : start + block_bytes], digest_size=16).digest()
            blocks.append(key)
        hits = 0
        for key in blocks[: record.prompt_tokens // self.block_size]:
            if key not in self._seen_blocks:
                break
            hits += 1
        self._seen_blocks.update(blocks)
        return hits, hits

    def _add_hash_ids(self, record: RequestRecord) -> tuple[int, int]:
        """An id names a prefix, so all requests cut the same blocks from it: one number per id tells which are seen.

        A block belongs to the id that holds its last token.
        """
        block_size, seen_of_id, num_prompt_tokens = self.block_size, self._seen_tokens_of_id, record.prompt_tokens
        hits = leading = first_block = 0
        for name, start, end in self._stretches(record):
            seen = seen_of_id.get(name, 0)
            num_seen = min(end, start + seen, num_prompt_tokens) // block_size - first_block
            if num_seen > 0:
                if leading == first_block:
                    leading += num_seen
                hits += num_seen
            end_block = end // block_size
            if seen < end - start and end_block > first_block:
                seen_of_id[name] = end - start
            first_block = end_block
        return hits, leading

    def _stretches(self, record: RequestRecord) -> Iterator[tuple[tuple[Any, ...], int, int]]:
        """What names the tokens of each id, and where they start and end; with images, block by block."""
        assert record.hash_ids is not None
        kind = self._kinds.setdefault((record.hash_block_tokens, _root(record)), len(self._kinds))
        num_tokens = min(record.num_named_tokens, record.prompt_tokens + max(record.output_tokens - 1, 0))
        block_size, images = self.block_size, record.images
        start = 0
        for hash_id, end in zip(record.hash_ids, record.id_ends, strict=True):
            end = min(end, num_tokens)
            if not images:
                yield (hash_id, start, kind), start, end
            else:
                for part in sorted({*range((start // block_size + 1) * block_size, end, block_size), end}):
                    seen = tuple((i.content_hash, i.offset_tokens) for i in images if i.offset_tokens < part)
                    yield (hash_id, start, kind, *seen), start, part
            start = end


def _root(record: RequestRecord) -> bytes:
    """What sets all blocks of a request apart from equal tokens elsewhere; empty for most requests."""
    parts = (record.lora_name, record.cache_salt or None)
    return b"" if parts == (None, None) else repr(parts).encode()


def _images_in(record: RequestRecord, start: int, block_size: int) -> bytes:
    """The images that overlap the block of tokens from ``start`` on, and where they begin."""
    found = [
        (image.content_hash, image.offset_tokens - start)
        for image in record.images
        if image.offset_tokens < start + block_size and image.offset_tokens + image.length_tokens > start
    ]
    return repr(found).encode() if found else b""
