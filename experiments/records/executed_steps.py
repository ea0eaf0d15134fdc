"""``executed.parquet`` of a measured run: a row per step, what the engine decided and what the device did.

Columns that begin with ``device_`` were read back from the device. They are null in steps that were scheduled and not
completed, because the run ended before. Of block tables a row has only what changed: a request's table is the first
``kept_blocks`` entries of the table that it had in the step before in which it computed, then ``new_blocks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.folder import parquet_bytes
from kvtwin.experiments.records.reader import Run, read_arrow
from kvtwin.sim.decided_steps import DecidedStep
from kvtwin.sim.step_shape import StepShape

NAME = "executed.parquet"

_TIMES = ("duration_ns", "host_ns", "num_padded_sequences")
_IDS = ("request_ids", "admitted", "forks", "preempted", "finished", "finish_reasons", "device_request_ids")


def executed_file(decided: Sequence[DecidedStep], executed: Sequence[ExecutedStep]) -> bytes:
    """The content of the file: all steps that were scheduled, in order, of which the first were completed."""
    import pyarrow

    rows = list(_rows(decided, executed))
    return parquet_bytes(pyarrow.Table.from_pylist(rows, schema=_schema()))


def read_executed_steps(run: Run) -> tuple[list[DecidedStep], list[ExecutedStep]]:
    """All steps that were scheduled, and those that were completed. UserError: no such file, or a damaged one."""
    path = run.path / NAME
    if not path.is_file():
        hint = f"it is of several replicas: name {run.replicas[0].path}" if run.replicas else "it was not measured"
        raise UserError(f"{run.path}: has no {NAME}: {hint}")
    table = read_arrow(path)
    if table.schema != _schema():
        raise UserError(f"{path}: another version of kvtwin wrote it; run it again")
    tables, device_tables = _Tables(), _Tables()
    decided, executed = [], []
    for number, row in enumerate(table.to_pylist(), 1):
        if missing := _missing(row):
            raise UserError(f"{path}: damaged: row {number} has no {missing}")
        try:
            decided.append(_decided_step(row, tables))
            if row["duration_ns"] is not None:
                executed.append(_executed_step(row, device_tables))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged: row {number}: {error}") from None
    return decided, executed


def _missing(row: dict[str, Any]) -> str | None:
    """A column that must have a value in this row, and has none."""
    is_completed = row["duration_ns"] is not None
    for name, value in row.items():
        is_delivered = name in _TIMES or name.startswith("device_")
        if value is None and name != "output_tokens" and (is_completed or not is_delivered):
            return name
    return None


class _Tables:
    """The latest table of each request, by id: what the next one is told apart from."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, ...]] = {}

    def changes(self, request_ids: Sequence[str], tables: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
        """For each table, how many leading entries equal those of the table before, and the remaining entries."""
        kept, new = [], []
        for request_id, table in zip(request_ids, map(tuple, tables), strict=True):
            num_kept = _num_equal(self._latest.get(request_id, ()), table)
            self._latest[request_id] = table
            kept.append(num_kept)
            new.append(list(table[num_kept:]))
        return kept, new

    def whole(
        self, request_ids: Sequence[str], kept: Sequence[int], new: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """The tables from which `changes` made these."""
        tables = []
        for request_id, num_kept, blocks in zip(request_ids, kept, new, strict=True):
            table = self._latest.get(request_id, ())
            if blocks or num_kept < len(table):  # else it is the same object: steps share what is equal
                table = self._latest[request_id] = (*table[:num_kept], *blocks)
            tables.append(table)
        return tables


def _num_equal(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Leading entries that are equal."""
    if one == other[: len(one)]:  # nearly always
        return len(one)
    return next(
        (index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )


def _rows(decided: Sequence[DecidedStep], executed: Sequence[ExecutedStep]) -> Iterator[dict[str, Any]]:
    assert len(executed) <= len(decided)
    tables, device_tables = _Tables(), _Tables()
    for step, done in zip_longest(decided, executed):
        row = {field.name: getattr(step, field.name) for field in fields(DecidedStep)} | step.shape._asdict()
        row["kept_blocks"], row["new_blocks"] = tables.changes(step.request_ids, step.block_tables)
        if done is not None:
            row |= {name: getattr(done, name) for name in _TIMES}
            for name in ("index", "request_ids", "slots", "tokens", "logits"):
                row[f"device_{name}"] = getattr(done, name)
            changes = device_tables.changes(done.request_ids, done.block_tables)
            row["device_kept_blocks"], row["device_new_blocks"] = changes
        yield row


def _decided_step(row: dict[str, Any], tables: _Tables) -> DecidedStep:
    values = {field.name: row[field.name] for field in fields(DecidedStep) if field.name in row}
    for name in ("copies", "saves", "loads"):
        values[name] = [tuple(pair) for pair in row[name]]
    return DecidedStep(
        **values,
        shape=StepShape(**{name: row[name] for name in StepShape._fields}),
        block_tables=tables.whole(row["request_ids"], row["kept_blocks"], row["new_blocks"]),
    )


def _executed_step(row: dict[str, Any], tables: _Tables) -> ExecutedStep:
    return ExecutedStep(
        **{name: row[f"device_{name}"] for name in ("index", "request_ids", "slots", "tokens", "logits")},
        block_tables=tables.whole(row["device_request_ids"], row["device_kept_blocks"], row["device_new_blocks"]),
        **{name: row[name] for name in _TIMES},
    )


def _schema() -> Any:
    import pyarrow

    number, numbers = pyarrow.int64(), pyarrow.list_(pyarrow.int32())
    lists = pyarrow.list_(numbers)
    decided = [field.name for field in fields(DecidedStep) if field.name not in ("shape", "block_tables")]
    columns = dict.fromkeys(decided, numbers) | {
        "index": number,
        "scheduled_ns": number,
        "output_tokens": lists,
        **dict.fromkeys(("copies", "saves", "loads"), lists),
        **dict.fromkeys(StepShape._fields, number),
        "kept_blocks": numbers,
        "new_blocks": lists,
        **dict.fromkeys(_TIMES, number),
        "device_index": number,
        "device_request_ids": numbers,
        "device_kept_blocks": numbers,
        "device_new_blocks": lists,
        "device_slots": pyarrow.list_(pyarrow.list_(number)),
        "device_tokens": lists,
        "device_logits": pyarrow.list_(pyarrow.list_(pyarrow.float64())),
    }
    columns |= dict.fromkeys(_IDS, pyarrow.list_(pyarrow.string()))
    return pyarrow.schema(list(columns.items()))
