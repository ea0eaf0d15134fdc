"""Hit rates of replays, to be laid on the capacity curve of the same requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.sweeps.folder import read_sweep

_EQUAL = (
    ("block_size", "block_size", "tokens per block"),
    ("prefix_cache_queries", "queried_tokens", "prompt tokens"),
    ("data_parallel_size", "data_parallel_size", "replicas"),
)
"""Keys of a run's summary and of a curve whose values must be equal, and what they are; without any there is one."""


def simulated_points(folder: Path, facts: dict[str, Any]) -> list[tuple[int, float]]:
    """(blocks, hit rate) of a run, or of every point of a sweep that did not fail.

    UserError, naming the folder: it is neither, or what it replayed is not what the curve is of.
    """
    if (folder / "sweep.yaml").is_file():
        summaries = [row for row in read_sweep(folder)[1] if row.get("error") is None]
    else:
        summaries = [Run(folder).summary]
    points = []
    for summary in summaries:
        for key, in_curve, what in _EQUAL:
            there, here = summary.get(key, 1), facts.get(in_curve, 1)
            if there != here:
                raise UserError(f"{folder}: does not match the curve: {there} {what}, the curve has {here}")
        if summary.get("prefix_cache_hit_rate") is not None:
            points.append((summary["num_gpu_blocks"], summary["prefix_cache_hit_rate"]))
    if not points:
        raise UserError(f"{folder}: no replay with a known hit rate")
    return points
