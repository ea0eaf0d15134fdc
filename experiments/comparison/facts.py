"""Runs side by side as plain data: options, resolved settings, figures, and requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.reader import Columns, Run
from kvtwin.workloads.time_units import MILLISECOND_NS

_REQUEST_COLUMNS = (
    "request_id",
    "arrival_ns",
    "first_token_ns",
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "preemptions",
    "finish_reason",
)

_NO_FIGURES = ("verdicts", "replicas", "routed_prefixes")
"""Keys of a summary that are no figures of the whole run."""

Row = dict[str, Any]
"""``name``, the ``values`` of all runs in order, and whether they are ``equal``."""


def compare_facts(runs: list[Run], names: list[str] | None = None) -> dict[str, Any]:
    """Everything that ``kvtwin compare`` prints; ``names`` of the runs, else their folders'.

    UserError, naming the folder: a run cannot be read.
    """
    summaries = [run.summary for run in runs]
    return {
        "runs": names or _names(runs),
        "options": _rows([run.configuration["options"] for run in runs]),
        "settings": _rows([dict(_settings(run)) for run in runs]),
        "figures": [_with_differences(row) for row in _rows(summaries) if row["name"] not in _NO_FIGURES],
        "verdicts": [list(summary.get("verdicts", ())) for summary in summaries],
        "requests": [_compare_requests(runs[0], run) for run in runs[1:]],
    }


def _names(runs: list[Run]) -> list[str]:
    """The folders' names; their paths where names are equal."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """What the options were resolved to, in one level."""
    for name, value in run.configuration.items():
        if name == "options":
            continue
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        else:
            yield name, value


def _rows(mappings: list[dict[str, Any]]) -> list[Row]:
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    rows = []
    for name in names:
        values = [mapping.get(name) for mapping in mappings]
        rows.append({"name": name, "values": values, "equal": all(value == values[0] for value in values)})
    return rows


def _with_differences(row: Row) -> Row:
    """The row with each value's difference to the first, absolute and relative, where both are numbers."""
    first = row["values"][0]
    differences = [_difference(first, value) for value in row["values"]]
    relative = [difference / abs(first) if difference is not None and first else None for difference in differences]
    return row | {"differences": differences, "relative_differences": relative}


def _difference(first: Any, value: Any) -> float | None:
    is_number = [isinstance(x, int | float) and not isinstance(x, bool) for x in (first, value)]
    return value - first if all(is_number) else None


def _compare_requests(first: Run, other: Run) -> dict[str, Any]:
    """How many requests fared differently in ``other``; ``not_compared`` says why where they cannot be."""
    one, two = _requests(first), _requests(other)
    ids, at_one, at_two = np.intersect1d(one["request_id"], two["request_id"], return_indices=True)
    if len(ids) == 0 or any(len(np.unique(table["request_id"])) < len(table["request_id"]) for table in (one, two)):
        return {"not_compared": "the runs have different request ids"}
    one, two = _taken(one, at_one), _taken(two, at_two)
    if any((one[name] != two[name]).any() for name in ("prompt_tokens", "output_tokens")):
        return {"not_compared": "requests with the same id differ in length"}
    hits = two["hit_tokens"] - one["hit_tokens"]
    preemptions = two["preemptions"] - one["preemptions"]
    started = (one["first_token_ns"] >= 0) & (two["first_token_ns"] >= 0)
    waits = [(table["first_token_ns"] - table["arrival_ns"])[started] for table in (one, two)]
    later_ns = waits[1] - waits[0]
    return {
        "num_compared": len(ids),
        "num_only_first": len(first.requests["request_id"]) - len(ids),
        "num_only_other": len(other.requests["request_id"]) - len(ids),
        "num_more_hit_tokens": int((hits > 0).sum()),
        "num_fewer_hit_tokens": int((hits < 0).sum()),
        "num_more_preemptions": int((preemptions > 0).sum()),
        "num_fewer_preemptions": int((preemptions < 0).sum()),
        "num_later_first_tokens": int((later_ns > 0).sum()),
        "num_earlier_first_tokens": int((later_ns < 0).sum()),
        "median_later_ms": float(np.median(later_ns)) / MILLISECOND_NS if len(later_ns) else None,
        "num_other_finish_reason": int((one["finish_reason"] != two["finish_reason"]).sum()),
    }


def _requests(run: Run) -> Columns:
    missing = [name for name in _REQUEST_COLUMNS if name not in run.requests]
    if missing:
        raise UserError(f"{run.path / 'requests.parquet'}: not the requests of a run: {missing[0]} is missing")
    return {name: run.requests[name] for name in _REQUEST_COLUMNS}


def _taken(columns: Columns, indices: np.ndarray) -> Columns:
    return {name: column[indices] for name, column in columns.items()}
