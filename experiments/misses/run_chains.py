"""Chains of the requests of one run, in runs as long as they can be."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.workloads.prefixes.chains import Chain, Run, chain_of, prefix_chain
from kvtwin.workloads.request_record import RequestRecord


class RunChains:
    """Makes what :func:`~kvtwin.workloads.prefixes.chains.prefix_chain` makes, with longer runs: all ids, or blocks of
    known tokens, that were new together have one. Equal names mean equal prefixes within one ``tree``."""

    def __init__(self, block_size: int, tree: PrefixTree) -> None:
        self._block_size = block_size
        self._tree = tree

    def of(self, record: RequestRecord, *, is_sibling: bool = False) -> Chain:
        """The chain of ``record``, or of a further sample of it: nothing is known of its output."""
        if is_sibling:
            record = replace(record, output_tokens=1, output_token_ids=None)
        chain = prefix_chain if self._needs_more_names(record) else self._chain
        return chain(record, self._block_size)

    def _needs_more_names(self, record: RequestRecord) -> bool:
        has_names = record.token_ids is not None or record.hash_ids is not None
        return not has_names or record.hash_id_ends is not None

    def _chain(self, record: RequestRecord, block_size: int) -> Chain:
        token_ids = record.token_ids
        runs = list(self._id_runs(record) if token_ids is None else self._token_runs(record, token_ids))
        if record.images:
            runs = self._with_images(record, runs)
        return chain_of(record, runs, block_size)

    def _id_runs(self, record: RequestRecord) -> Iterator[Run]:
        """A run per stretch: a block belongs to the one that holds its last token. Hashes are not negative."""
        assert record.hash_ids is not None
        assert record.hash_block_tokens is not None
        name = record.lora_name, record.cache_salt or None, record.hash_block_tokens
        first_block = 0
        for first_id, num_ids, place in self._tree.stretches(name, list(record.hash_ids), 1):
            end = (first_id + num_ids) * record.hash_block_tokens
            end_block = min(end, record.prompt_tokens) // self._block_size
            if end_block > first_block:
                yield -1 - place, end_block - first_block
            first_block = end_block

    def _token_runs(self, record: RequestRecord, token_ids: Sequence[int]) -> Iterator[Run]:
        """A run per stretch of blocks, with those of the output."""
        tokens = array("q", token_ids)
        tokens.extend((record.output_token_ids or ())[:-1])
        content, size = tokens.tobytes(), self._block_size * tokens.itemsize
        blocks = [content[start : start + size] for start in range(0, len(content) - size + 1, size)]
        for _, count, place in self._tree.stretches((record.lora_name, record.cache_salt or None), blocks, 1):
            yield -1 - place, count

    def _with_images(self, record: RequestRecord, runs: list[Run]) -> list[Run]:
        """Behind the first image all blocks have names of their own."""
        num_before = record.images[0].offset_tokens // self._block_size
        return [
            *_cut(runs, 0, num_before),
            *_cut(prefix_chain(record, self._block_size).runs, num_before, record.prompt_tokens),
        ]


def _cut(runs: list[Run], start: int, end: int) -> Iterator[Run]:
    """The blocks from ``start`` to ``end``."""
    first = 0
    for name, count in runs:
        if start < first + count and first < end:
            yield name, min(end, first + count) - max(start, first)
        first += count
