"""``events.parquet`` of a run folder: what happened in every step, a row for each, beside ``steps.parquet``.

Steps of a warm-up, which ``steps.parquet`` leaves out, have rows here, before the others: else nobody could tell what
the blocks hold when it is over.

The columns are the fields of `kvtwin.sim.step_events.StepEvents`. A run's rows are written as it goes on: they would
not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from numpy.typing import NDArray

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.step_events import StepEvents

NAME = "events.parquet"
_ROWS_AT_ONCE = 2_000

_IDS = ("scheduled", "admitted", "preempted", "finished", "table_requests")


class EventFile:
    """Writes rows; a context, at whose end the file is complete."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow.parquet

        self._schema = _schema()
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[StepEvents] = []

    def keep(self, row: StepEvents) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._write()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow

        columns = [[getattr(row, name) for row in self._rows] for name in self._schema.names]
        arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(pyarrow.table(arrays, schema=self._schema))
        self._rows = []


def has_events(folder: Path) -> bool:
    """Whether a run was replayed with ``--events``."""
    return (folder / NAME).is_file()


def num_warm_up_steps(run: Run) -> int:
    """Steps that only the events have. UserError as for `read_events`."""
    import pyarrow
    import pyarrow.parquet

    if not has_events(run.path):
        raise UserError(f"{run.path}: has no {NAME}; replay it with --events")
    try:
        return int(pyarrow.parquet.read_metadata(run.path / NAME).num_rows) - len(run.steps["end_ns"])
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{run.path / NAME}: not a table: {error}") from None


def read_events(run: Run, columns: tuple[str, ...], *, with_warm_up: bool = False) -> Iterator[dict[str, list[Any]]]:
    """The columns asked for of a run's events, some thousand steps at a time, each a list with an entry per step.

    ``with_warm_up``: also of the steps that only the events have. UserError: the run was not replayed with
    ``--events``, or its file is not what that writes.
    """
    num_left_out = 0 if with_warm_up else num_warm_up_steps(run)
    for batch in _batches(run, columns):
        counted = batch.slice(num_left_out)
        num_left_out -= len(batch) - len(counted)
        if len(counted):
            yield {name: counted.column(name).to_pylist() for name in columns}


def read_block_changes(run: Run) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Some thousand steps at a time: all their changes, the blocks of these, and where the changes of each step begin.

    The last array has one entry more than there are steps. The steps of a warm-up come first. UserError as for
    `read_events`.
    """
    for batch in _batches(run, ("block_changes", "blocks")):
        changes, blocks = batch.column("block_changes"), batch.column("blocks")
        starts = changes.offsets.to_numpy()
        yield changes.flatten().to_numpy(), blocks.flatten().to_numpy(), starts - starts[0]


def _batches(run: Run, columns: tuple[str, ...]) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    path = run.path / NAME
    num_left_out, has_warm_up = num_warm_up_steps(run), run.summary.get("num_warmup_requests", 0) > 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if file.schema_arrow != _schema() or num_left_out < 0 or (num_left_out and not has_warm_up):
                raise UserError(f"{path}: not the events of this run's steps")
            yield from file.iter_batches(_ROWS_AT_ONCE, columns=list(columns))
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a table: {error}") from None


def _schema() -> Any:
    import pyarrow

    ids, numbers = pyarrow.list_(pyarrow.string()), pyarrow.list_(pyarrow.int32())
    kinds = {"evictions": pyarrow.int32(), "block_changes": pyarrow.list_(pyarrow.int8())} | dict.fromkeys(_IDS, ids)
    return pyarrow.schema([(field.name, kinds.get(field.name, numbers)) for field in fields(StepEvents)])
