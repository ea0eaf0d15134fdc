"""Token ids for requests of which less is known, so that a real model can be sent them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.mixing import fold, fold_arrays
from kvtwin.workloads.request_record import RequestRecord

_SHARED, _PRIVATE = 0, 1


def with_token_ids(
    records: Iterable[RequestRecord], vocabulary_size: int, seed: int = 0, *, folds: bool = False
) -> Iterator[RequestRecord]:
    """``records`` with a token id below ``vocabulary_size`` for every prompt token; outputs are for the model to say.

    Equal prefixes get equal ids, and others differ but by chance. Given ids are kept; with ``folds`` those of a larger
    vocabulary are taken modulo this one, for a model to which no word means anything. Behind hash ids an id follows
    from ``seed``, the hash ids up to its own, and its position in the stretch of that; where nothing names a token,
    from ``seed``, the record's place in ``records`` and the token's position. Salts and adapters are kept.

    Raises `WorkloadError` for a record with a given id that is too large, unless it ``folds``, or with images.
    """
    for index, record in enumerate(records):
        if record.images:
            raise WorkloadError(record.source, "images: expected text only, because the model takes no images")
        yield replace(
            record,
            token_ids=_prompt(record, index, vocabulary_size, seed, folds=folds),
            hash_ids=None,
            hash_block_tokens=None,
            hash_id_ends=None,
            output_token_ids=None,
            accepted_drafts=None,
        )


def _prompt(record: RequestRecord, index: int, vocabulary_size: int, seed: int, *, folds: bool) -> Sequence[int]:
    if record.token_ids is not None:
        largest = max(record.token_ids, default=0)
        if folds:
            return (
                record.token_ids if largest < vocabulary_size else [id_ % vocabulary_size for id_ in record.token_ids]
            )
        if largest >= vocabulary_size:
            raise WorkloadError(
                record.source,
                f"token_ids: expected ids below {vocabulary_size:,}, the model's vocabulary, got {largest}",
            )
        return record.token_ids
    chains, lengths = _stretches(record, seed)
    num_private = record.prompt_tokens - sum(lengths)
    chains.append(fold(fold(seed, _PRIVATE), index))
    lengths.append(num_private)
    positions = np.concatenate([np.arange(length, dtype=np.uint64) for length in lengths])
    mixed = fold_arrays(np.repeat(np.array(chains, dtype=np.uint64), lengths), positions)
    return array("q", (mixed % np.uint64(vocabulary_size)).astype(np.int64).tobytes())


def _stretches(record: RequestRecord, seed: int) -> tuple[list[int], list[int]]:
    """Of each hash id that names tokens of the prompt, what stands for it and all before it, and how many it names.

    What counts as equal is what :class:`kvtwin.engine.block_keys.PrefixIdContent` takes for equal.
    """
    chains: list[int] = []
    lengths: list[int] = []
    if record.hash_ids is None:
        return chains, lengths
    chain = fold(fold(seed, _SHARED), record.hash_block_tokens or 0)
    start, named = 0, min(record.num_named_tokens, record.prompt_tokens)
    for hash_id, end in zip(record.hash_ids, record.id_ends, strict=True):
        if start >= named:
            break
        chain = fold(fold(chain, hash_id), start)
        chains.append(chain)
        lengths.append(min(end, named) - start)
        start = end
    return chains, lengths
