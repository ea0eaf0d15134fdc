"""The rows of trace files, whatever holds them: JSON lines, JSON arrays or objects over many lines, CSV, Parquet."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, BinaryIO

from kvtwin.workloads.counts import number_of
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.bad_lines import BadLines
from kvtwin.workloads.formats.csv_row import CsvRow
from kvtwin.workloads.formats.json_lines import Line, decoder, lines_of
from kvtwin.workloads.formats.json_rows import JsonRow, is_list, shown
from kvtwin.workloads.formats.text_lines import NO_TEXT, check_text, open_bytes, open_text, reading_errors

_CHUNK_CHARACTERS = 1 << 20
_PARQUET_MAGIC = b"PAR1"


class Rows:
    """Iterates over the rows of ``paths``, one file after the other; a context of `bad_lines` surrounds each row.

    A reader tells here what it found beside requests:

    * ``left_out``: rows that are no requests, by what they are; they are counted, and told;
    * ``notes``: sentences for the user;
    * ``has_starts``: set it to False where requests, or first turns, have no arrival times.

    Raises `WorkloadError` when a file cannot be read, and for a bad row unless ``skip_bad_lines``.
    """

    def __init__(
        self, paths: Sequence[Path], skip_bad_lines: bool = False, on_row: Callable[[], object] = lambda: None
    ) -> None:
        """``on_row`` is called at every row."""
        self.paths = paths
        self.on_row = on_row
        self.bad_lines = BadLines(skip_bad_lines)
        self.left_out = Counter[str]()
        self.notes = dict[str, None]()
        self.has_starts = True
        self.columns: list[str] | None = None
        """Those of the last CSV file."""

    def __iter__(self) -> Iterator[JsonRow]:
        for path in self.paths:
            number = 0
            try:
                with reading_errors(path):
                    for row in self._of(path):
                        number += 1
                        self.on_row()
                        yield row
            except WorkloadError as error:  # what follows cannot be read
                if not number or not self.bad_lines.skip:
                    raise
                self.notes[f"{error}: read {number_of(number, 'row')} before that, and nothing behind it"] = None

    def _of(self, path: Path) -> Iterator[JsonRow]:
        if _is_parquet(path):
            yield from _parquet_rows(path)
            return
        with open_text(path) as text:
            lines = ((number, line) for number, line in enumerate(text, start=1) if not line.isspace())
            first = list(islice(lines, 2))
            if not first:
                return
            kind = _kind([line.strip() for _, line in first])
            if kind == "values":
                yield from _json_values(path, "".join(line for _, line in first), text, first[0][0], self.bad_lines)
            elif kind == "columns":
                check_text(f"{path}:{first[0][0]}", first[0][1])
                cells = csv.reader(chain((line for _, line in first), text))
                self.columns = [name.strip() for name in next(cells)]
                yield from _csv_rows(path, cells, self.columns, first[0][0] - 1, self.bad_lines)
        if kind == "lines":
            with open_bytes(path) as file:
                yield from _json_lines(path, file, self.bad_lines)

    def first(self, number: int) -> list[JsonRow]:
        """The first rows."""
        return list(islice(self, number))

    def sentences(self) -> list[str]:
        """What to tell the user of the rows that were read."""
        left_out = [f"left out {number_of(number, 'row')}: {what}" for what, number in self.left_out.items()]
        return [*self.bad_lines.sentences(), *left_out, *self.notes]


def _kind(first: list[str]) -> str:
    """``lines`` of JSON, JSON ``values`` that span lines, or ``columns``."""
    if not first[0].startswith(("{", "[")):
        return "columns"
    if first[0] in ("[", "[]") or _holds_objects(first[0]):
        return "values"
    return "lines" if len(first) == 1 or any(map(_is_json, first)) else "values"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return text.startswith(("{", "["))


def _holds_objects(line: str) -> bool:
    """Whether the line begins a list of objects: a file of them, not a row that is a list."""
    return line.startswith("[") and line[1:].lstrip().startswith("{")


def _json_lines(path: Path, file: BinaryIO, bad_lines: BadLines) -> Iterator[JsonRow]:
    for number, line in lines_of(file):
        row = None
        with bad_lines:
            row = _row(path, number, line)
        if row is not None:
            yield row


def _row(path: Path, number: int, line: Line) -> JsonRow:
    source = f"{path}:{number}"
    try:
        values = line.value()
    except UnicodeDecodeError:
        raise WorkloadError(source, NO_TEXT) from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(source, f"malformed JSON: {getattr(error, 'msg', None) or error}") from None
    return _object_row(source, values)


def _object_row(source: str, values: Any) -> JsonRow:
    if isinstance(values, list) and len(values) > 1 and is_list(values[1]):  # as vLLM's batches of KV events
        return JsonRow(source, {f"[{index}]": value for index, value in enumerate(values)})
    if not isinstance(values, dict):
        raise WorkloadError(source, f"expected a JSON object, got {shown(values)}")
    return JsonRow(source, values)


def _json_values(path: Path, text: str, rest: IO[str], number: int, bad_lines: BadLines) -> Iterator[JsonRow]:
    """Values that follow one another, or the entries of one array; ``number`` is the line of the first."""
    position, is_array, is_last = 0, False, False
    while True:
        position, number = _next_value(text, position, number)
        if not is_array and text.startswith("[", position):
            is_array, position = True, position + 1
            continue
        try:
            if position == len(text):
                raise ValueError("ends")
            if is_array and text.startswith("]", position):
                return
            values, end = decoder.raw_decode(text, position)
            if end == len(text) and not is_last and not text.endswith(("}", "]")):
                raise ValueError("may go on")
        except (ValueError, RecursionError) as error:
            more = rest.read(max(_CHUNK_CHARACTERS, len(text) - position))
            if more:
                text, position = text[position:] + more, 0
                continue
            is_last = True
            if position == len(text) and not is_array:
                return
            reason = "ends early" if position == len(text) else getattr(error, "msg", None) or error
            line = number + text.count("\n", position, getattr(error, "pos", position))
            raise WorkloadError(f"{path}:{line}", f"malformed JSON: {reason}") from None
        row = None
        with bad_lines:
            check_text(f"{path}:{number}", text[position:end])
            row = _object_row(f"{path}:{number}", values)
        number += text.count("\n", position, end)
        position = end
        if row is not None:
            yield row


def _next_value(text: str, position: int, number: int) -> tuple[int, int]:
    """Where the next value begins, behind blanks and a comma, and in which line."""
    start = position
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position, number + text.count("\n", start, position)


def _csv_rows(path: Path, rows: Any, columns: list[str], num_before: int, bad_lines: BadLines) -> Iterator[JsonRow]:
    try:
        for cells in rows:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            source = f"{path}:{rows.line_num + num_before}"
            row = None
            with bad_lines:
                check_text(source, *cells)
                if len(cells) != len(columns):
                    raise WorkloadError(source, f"expected {len(columns)} columns, got {len(cells)}")
                row = CsvRow(source, {name: cell for name, cell in zip(columns, cells, strict=True) if cell})
            if row is not None:
                yield row
    except csv.Error as error:
        raise WorkloadError(f"{path}:{rows.line_num + num_before}", f"malformed CSV: {error}") from None


def _is_parquet(path: Path) -> bool:
    if path.is_dir():
        return False
    with open_bytes(path) as file:
        return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC


def _parquet_rows(path: Path) -> Iterator[JsonRow]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with open_bytes(path) as file, pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(1000):
                for values in batch.to_pylist():
                    number += 1
                    row = {name: _plain(value) for name, value in values.items() if value is not None}
                    yield JsonRow(f"{path}: row {number}", row)
    except pyarrow.ArrowException as error:
        raise WorkloadError(str(path), f"not a Parquet file that can be read: {error}") from None


def _plain(value: Any) -> Any:
    """A value as JSON would have it."""
    if isinstance(value, float):
        return Decimal(repr(value))
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value
