"""Shorter requests that share what the long ones shared: a large trace for a small device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.mixing import fold
from kvtwin.workloads.request_record import RequestRecord


def scale_lengths(records: Iterable[RequestRecord], scale: float) -> Iterator[RequestRecord]:
    """``records`` with ``scale`` times as many tokens, in prompts and outputs, with ids for prefixes instead of tokens.

    Token ``p`` of a request stands where token ``floor(p * scale)`` is then, so that two prompts that share their first
    ``L`` tokens share the first ``floor(L * scale)``, and no more. At least one token is left of a prompt, and of an
    output where there is one. What is said in an output is unknown afterwards, but for ids that reach into it. A scale
    of 1 changes no length. The scale counts as the decimal number it is written as.

    Raises ValueError unless the scale is above 0 and at most 1, `WorkloadError` for a record with images.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"length scale: expected a number above 0 and at most 1, got {scale}")
    return (_scaled(record, Fraction(str(scale))) for record in records)


def _scaled(record: RequestRecord, scale: Fraction) -> RequestRecord:
    if record.images:
        raise WorkloadError(record.source, "images: expected text only, because an image cannot be shortened")
    prompt_tokens = max(1, int(record.prompt_tokens * scale))
    total_tokens = int((record.prompt_tokens + record.output_tokens) * scale)
    hash_ids, ends = _named_prefix(record, scale)
    return replace(
        record,
        prompt_tokens=prompt_tokens,
        output_tokens=max(1, total_tokens - prompt_tokens) if record.output_tokens else 0,
        token_ids=None,
        hash_ids=hash_ids,
        hash_block_tokens=None,
        hash_id_ends=ends,
        output_token_ids=None,
        accepted_drafts=None,
    )


def _named_prefix(record: RequestRecord, scale: Fraction) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """Ids for the shorter prompt, and where their stretches end; none if nothing is known of the prompt.

    An id of which no token is left is folded into the next one. Each counts together with where it began, because the
    same id that begins elsewhere names another prefix.
    """
    old_ids: Sequence[int]
    old_ends: Sequence[int]
    if record.token_ids is not None:
        old_ids, old_ends, named, name = record.token_ids, range(1, record.prompt_tokens + 1), record.prompt_tokens, -1
    elif record.hash_ids is not None:
        old_ids, old_ends, named = record.hash_ids, record.id_ends, record.num_named_tokens
        name = record.hash_block_tokens or 0
    else:
        return None, None
    ids: list[int] = []
    ends: list[int] = []
    start = last = 0
    for old_id, old_end in zip(old_ids, old_ends, strict=True):
        if start >= named:
            break
        name = fold(fold(name, old_id), start)
        start = old_end
        end = int(min(old_end, named) * scale)
        if end > last:
            ids.append(name >> 1)  # 63 bits, as all ids of files have
            ends.append(end)
            name, last = 0, end
    return ids, ends
