"""The folder that ``kvtwin validate --out`` leaves: two runs, ``measured`` and ``predicted``, and what they tell."""

from __future__ import annotations

from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.folder import parquet_bytes
from kvtwin.experiments.records.reader import Run, read_table
from kvtwin.experiments.runs.paired_latencies import Pairs

FACTS = "comparison.json"
TEXT = "comparison.txt"
STEP_TIMES = "step_times.parquet"


def is_validation(folder: Path) -> bool:
    """Whether a validation that ran to its end left this folder."""
    return (folder / FACTS).is_file()


def step_times_bytes(times: Pairs) -> bytes:
    """The content of the file with the times of steps, in ns."""
    import pyarrow

    return parquet_bytes(pyarrow.table({"measured_ns": times.measured, "predicted_ns": times.predicted}))


def read_validation(folder: Path) -> tuple[str, Run, Run, Pairs]:
    """What was printed, both runs and the times of steps. UserError, naming the folder: it is not whole."""
    try:
        text = (folder / TEXT).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / TEXT}: not the text of a validation: {error}") from None
    times = read_table(folder / STEP_TIMES)
    return text, Run(folder / "measured"), Run(folder / "predicted"), Pairs(times["measured_ns"], times["predicted_ns"])
