"""kvtwin's own format: JSON lines that hold every field of a request record (docs/workload-format.md)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, ClassVar

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.json_rows import JsonRow, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import MOST_SAMPLES, ImageSpan, Predecessor, RequestRecord

VERSION = 1
_HEADER_KEYS = ("kvtwin_workload", "description")
_KEYS = (
    "id",
    "arrival_ns",
    "prompt_tokens",
    "token_ids",
    "hash_ids",
    "hash_block_tokens",
    "hash_id_ends",
    "output_tokens",
    "output_token_ids",
    "accepted_drafts",
    "n",
    "priority",
    "cache_salt",
    "lora",
    "images",
    "session",
    "think_time_ns",
    "after",
    "data_parallel_rank",
)
_IMAGE_KEYS = ("hash", "offset_tokens", "length_tokens", "text_positions")
_AFTER_KEYS = ("id", "delay_ns", "dispatched")


@dataclass(frozen=True)
class NativeReader(Reader):
    """Reads what `write_workload` wrote."""

    name: ClassVar[str] = "kvtwin"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("kvtwin_workload",))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        is_first = True
        for row in rows:
            if is_first or "kvtwin_workload" in row.values:  # each file has a header
                _check_header(row)
                is_first = False
                continue
            with rows.bad_lines:
                yield _record(row)


def _check_header(row: JsonRow) -> None:
    version = row.integer("kvtwin_workload")
    if version != VERSION:
        raise row.error("kvtwin_workload", f"expected version {VERSION}, got {version}")
    _refuse_unknown_keys(row, _HEADER_KEYS)


def write_workload(path: str | os.PathLike[str], records: Iterable[RequestRecord], description: str = "") -> int:
    """Write ``records`` to ``path`` in kvtwin's format and return how many there were.

    A name that ends in ``.gz`` is compressed. The file appears under its name only once it is complete.
    Raises `WorkloadError`, naming the record, when a record could not be read back.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        with gzip.open(partial, "wb") if target.suffix == ".gz" else open(partial, "wb") as file:
            count = write_lines(file, records, description)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def write_lines(file: IO[bytes] | gzip.GzipFile, records: Iterable[RequestRecord], description: str = "") -> int:
    """Write ``records`` to an open file and return how many there were. WorkloadError: one could not be read back."""
    count = 0
    file.write(_line({"kvtwin_workload": VERSION} | ({"description": description} if description else {})))
    for count, record in enumerate(records, start=1):
        values = _values(record)
        _record(JsonRow(f"record {count}", values))
        file.write(_line(values))
    return count


def checked_copy(record: RequestRecord, source: str) -> RequestRecord:
    """An equal record, from ``source``. WorkloadError, naming the source: no file could hold it."""
    return _record(JsonRow(source, _values(record)))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _values(record: RequestRecord) -> dict[str, Any]:
    """The row of ``record``; keys that would say nothing are left out."""
    values: dict[str, Any] = {
        "id": record.request_id,
        "arrival_ns": record.arrival_ns,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.token_ids is not None:
        values["token_ids"] = list(record.token_ids)
    if record.hash_ids is not None:
        values["hash_ids"] = list(record.hash_ids)
        if record.hash_id_ends is not None:
            values["hash_id_ends"] = list(record.hash_id_ends)
        else:
            values["hash_block_tokens"] = record.hash_block_tokens
    if record.output_token_ids is not None:
        values["output_token_ids"] = list(record.output_token_ids)
    if record.accepted_drafts is not None:
        values["accepted_drafts"] = list(record.accepted_drafts)
    if record.n != 1:
        values["n"] = record.n
    if record.priority:
        values["priority"] = record.priority
    if record.cache_salt is not None:
        values["cache_salt"] = record.cache_salt
    if record.lora_name is not None:
        values["lora"] = record.lora_name
    if record.images:
        values["images"] = [_image_values(image) for image in record.images]
    if record.session is not None:
        values["session"] = record.session
    if record.think_time_ns is not None:
        values["think_time_ns"] = record.think_time_ns
    if record.after:
        values["after"] = [
            dict(zip(_AFTER_KEYS, (of.request_id, of.delay_ns, of.dispatched), strict=True)) for of in record.after
        ]
    if record.data_parallel_rank is not None:
        values["data_parallel_rank"] = record.data_parallel_rank
    return values


def _record(row: JsonRow) -> RequestRecord:
    """The record of ``row``; raises `WorkloadError` on anything that the format does not allow."""
    values = row.values
    _refuse_unknown_keys(row, _KEYS)
    record = RequestRecord(
        request_id=row.text("id"),
        arrival_ns=row.time_ns("arrival_ns", 1),
        prompt_tokens=row.integer("prompt_tokens", minimum=1),
        output_tokens=row.integer("output_tokens", minimum=0),
        token_ids=row.integers("token_ids", minimum=0) if "token_ids" in values else None,
        hash_ids=row.integers("hash_ids") if "hash_ids" in values else None,
        hash_block_tokens=_hash_block_tokens(row),
        hash_id_ends=row.integers("hash_id_ends", minimum=1) if "hash_id_ends" in values else None,
        output_token_ids=row.integers("output_token_ids", minimum=0) if "output_token_ids" in values else None,
        accepted_drafts=row.integers("accepted_drafts", minimum=0) if "accepted_drafts" in values else None,
        n=row.integer("n", minimum=1) if "n" in values else 1,
        priority=row.integer("priority") if "priority" in values else 0,
        cache_salt=row.text("cache_salt") if "cache_salt" in values else None,
        lora_name=row.text("lora") if "lora" in values else None,
        session=row.text("session") if "session" in values else None,
        think_time_ns=row.time_ns("think_time_ns", 1) if "think_time_ns" in values else None,
        after=tuple(map(_predecessor, row.objects("after"))) if "after" in values else (),
        data_parallel_rank=row.integer("data_parallel_rank", minimum=0) if "data_parallel_rank" in values else None,
        source=row.source,
    )
    record.images = _images(row, record.prompt_tokens)
    if record.n > MOST_SAMPLES:
        raise row.error("n", f"expected at most {MOST_SAMPLES} samples, got {record.n}")
    if record.token_ids is not None and len(record.token_ids) != record.prompt_tokens:
        raise row.error("token_ids", f"expected {record.prompt_tokens} ids, got {len(record.token_ids)}")
    if record.hash_ids is not None:
        _check_hash_ids(row, record)
    if record.output_token_ids is not None and len(record.output_token_ids) != record.output_tokens:
        raise row.error("output_token_ids", f"expected {record.output_tokens} ids, got {len(record.output_token_ids)}")
    if record.think_time_ns is not None and record.session is None:
        raise row.error("think_time_ns", "expected a session beside it, but it is missing")
    return record


def _hash_block_tokens(row: JsonRow) -> int | None:
    if "hash_ids" not in row.values:
        for key in ("hash_block_tokens", "hash_id_ends"):
            if key in row.values:
                raise row.error(key, "expected hash_ids beside it, but they are missing")
        return None
    if "hash_id_ends" in row.values:
        if "hash_block_tokens" in row.values:
            raise row.error("hash_id_ends", "expected hash_block_tokens or hash_id_ends, got both")
        return None
    return row.integer("hash_block_tokens", minimum=1)


def _check_hash_ids(row: JsonRow, record: RequestRecord) -> None:
    assert record.hash_ids is not None
    if record.token_ids is not None:
        raise row.error("hash_ids", "expected token_ids or hash_ids, got both")
    if record.hash_block_tokens is not None:
        most = -(-record.prompt_tokens // record.hash_block_tokens)
        if len(record.hash_ids) > most:
            raise row.error(
                "hash_ids",
                f"expected at most ceil({record.prompt_tokens}/{record.hash_block_tokens}) = {most} ids, "
                f"got {len(record.hash_ids)}",
            )
    elif record.hash_id_ends is not None:
        ends, last = record.hash_id_ends, record.prompt_tokens + record.output_tokens
        if len(ends) != len(record.hash_ids):
            raise row.error("hash_id_ends", f"expected one for each of {len(record.hash_ids)} ids, got {len(ends)}")
        if any(end <= before for before, end in pairwise(ends)) or (ends and ends[-1] > last):
            raise row.error(
                "hash_id_ends", f"expected ascending ends up to prompt and output, {last}, got {shown(ends)}"
            )


def _images(row: JsonRow, prompt_tokens: int) -> tuple[ImageSpan, ...]:
    spans: list[ImageSpan] = []
    for image_row in row.objects("images") if "images" in row.values else ():
        _refuse_unknown_keys(image_row, _IMAGE_KEYS)
        span = ImageSpan(
            content_hash=image_row.text("hash"),
            offset_tokens=image_row.integer("offset_tokens", minimum=0),
            length_tokens=image_row.integer("length_tokens", minimum=1),
            text_positions=_text_positions(image_row),
        )
        end = span.offset_tokens + span.length_tokens
        if end > prompt_tokens:
            raise image_row.error("length_tokens", f"expected an end within {prompt_tokens} prompt tokens, got {end}")
        if spans and (first := spans[-1].offset_tokens + spans[-1].length_tokens) > span.offset_tokens:
            raise image_row.error(
                "offset_tokens", f"expected at least {first}, behind the image before, got {span.offset_tokens}"
            )
        spans.append(span)
    return tuple(spans)


def _text_positions(image_row: JsonRow) -> tuple[int, ...]:
    if "text_positions" not in image_row.values:
        return ()
    positions, length = image_row.integers("text_positions"), image_row.integer("length_tokens", minimum=1)
    if any(after <= before for before, after in pairwise((-1, *positions, length))):
        raise image_row.error(
            "text_positions", f"expected ascending positions from 0 to {length - 1}, got {shown(positions)}"
        )
    return tuple(positions)


def _image_values(image: ImageSpan) -> dict[str, Any]:
    of_all = (image.content_hash, image.offset_tokens, image.length_tokens)
    values: dict[str, Any] = dict(zip(_IMAGE_KEYS, of_all, strict=False))
    return values | ({"text_positions": list(image.text_positions)} if image.text_positions else {})


def _predecessor(row: JsonRow) -> Predecessor:
    _refuse_unknown_keys(row, _AFTER_KEYS)
    return Predecessor(
        request_id=row.text("id"), delay_ns=row.time_ns("delay_ns", 1), dispatched=row.boolean("dispatched")
    )


def _refuse_unknown_keys(row: JsonRow, known: tuple[str, ...]) -> None:
    for key in row.values:
        if key not in known:
            raise WorkloadError(row.source, f"{shown(key)}: unknown key, expected one of {', '.join(known)}")
