"""Two scales of a step-time model, fitted to when a server's requests got their tokens.

A request's time from its first to its last token is the sum of the steps between them, and so is the time that it
waits for the first one, while the server is busy. The simulation says which steps those are and how long each would
take; the fit says by which factor those that only decode take longer, and those that compute prompts (least squares of
errors relative to the time and three seconds more). Other times mean other steps: simulation and fit take turns, and
each simulation goes half the way to the last fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kvtwin.experiments.records.reader import Columns
from kvtwin.experiments.server_runs.served import ServedRequest

LEAST_REQUESTS = 30
"""Fewest requests with two output tokens or more that a fit makes sense of."""

MOST_CORRELATION = 0.98
"""Of both scales; above, the record cannot tell them apart."""

ROUNDS = 4
_PARTS = 10
_RESAMPLES = 400


class Scales(NamedTuple):
    """By how much a model's steps are stretched."""

    decode: float = 1.0
    """Those in which all sequences decode."""
    prefill: float = 1.0
    """Those that compute tokens of prompts."""


class Adjustment(NamedTuple):
    """The fitted scales, and how well the record determines them."""

    scales: Scales
    intervals: tuple[tuple[float, float], tuple[float, float]]
    """Of 90 %, of both."""
    correlation: float | None
    """Of both; None where the record cannot tell them apart, and one scale was fitted for all steps."""
    num_times: int
    """Times of requests that were fitted: to the first token, and from it to the last."""
    median_error: float
    """Of these times, without sign, after the fit."""


Simulate = Callable[[Scales], tuple[Columns, Columns]]
"""Serves the same requests with adjusted steps: the requests and steps of a run."""

_SLACK_NS = 3_000_000_000
"""Added to a time before errors are relative to it: short ones are uncertain by a step or two, and by what precedes."""


def fit_adjustment(
    served: Sequence[ServedRequest], simulate: Simulate, *, known_until_ns: float = float("inf")
) -> Adjustment:
    """Fit to requests that the server served, as far as was known at ``known_until_ns``.

    ValueError: too few of them, or ``simulate`` did not serve them.
    """
    known = {request.request_id: request for request in served if request.first_token_ns <= known_until_ns}
    num_usable = sum(request.output_tokens > 1 for request in known.values())
    if num_usable < LEAST_REQUESTS:
        raise ValueError(
            f"expected at least {LEAST_REQUESTS} requests of two output tokens or more, got {num_usable}: record a "
            "longer run"
        )
    scales = used = Scales()
    for _ in range(ROUNDS):
        work_ns, busy_ns = _rows(known, *simulate(used), used, known_until_ns)
        scales, correlation = _fit(work_ns, busy_ns)
        used = Scales(*np.mean([used, scales], axis=0).tolist())
    intervals = _intervals(work_ns, busy_ns, is_one=correlation is None)
    errors = np.abs(work_ns @ scales / busy_ns - 1)
    return Adjustment(scales, intervals, correlation, len(busy_ns), float(np.median(errors)))


def _rows(
    known: dict[str, ServedRequest], requests: Columns, steps: Columns, used: Scales, until_ns: float
) -> tuple[np.ndarray, np.ndarray]:
    """Of each known time, in order of its end: time of both kinds of unadjusted steps in it, and the measurement.

    While the simulated server is idle, the measured one is taken to be idle too.
    """
    started_ns, spent_ns = steps["start_ns"], steps["end_ns"] - steps["start_ns"]
    prompts = steps["tokens"] > steps["sequences"]
    moments = np.column_stack([started_ns, steps["end_ns"]]).ravel()

    def until(times_ns: list[int], step_ns: np.ndarray) -> np.ndarray:
        """What steps did up to some times, if each does ``step_ns`` evenly while it runs."""
        done = np.cumsum(step_ns)
        return np.interp(times_ns, moments, np.column_stack([done - step_ns, done]).ravel())

    names = ("request_id", "arrival_ns", "first_token_ns", "finish_ns")
    rows = []
    for name, *simulated_ns in zip(*(requests[name] for name in names), strict=True):
        request = known.get(str(name))
        if request is None or min(simulated_ns) < 0:
            continue
        decode_ns = np.diff(until(simulated_ns, spent_ns * ~prompts / used.decode))
        prefill_ns = np.diff(until(simulated_ns, spent_ns * prompts / used.prefill))
        idle_ns = np.diff(simulated_ns) - np.diff(until(simulated_ns, spent_ns))
        measured_ns = np.diff([request.arrival_ns, request.first_token_ns, request.last_token_ns])
        for part, end_ns in enumerate((request.first_token_ns, request.last_token_ns)):
            busy_ns = measured_ns[part] - idle_ns[part]
            if end_ns <= until_ns and busy_ns > 0 and decode_ns[part] + prefill_ns[part] > 0:
                rows.append((decode_ns[part], prefill_ns[part], busy_ns, end_ns))
    if len(rows) < LEAST_REQUESTS:
        raise ValueError(f"only {len(rows)} times of {len(known)} requests can be compared with the simulated server's")
    table = np.array(sorted(rows, key=lambda row: row[3]), dtype=float)
    return table[:, :2], table[:, 2]


def _fit(work_ns: np.ndarray, busy_ns: np.ndarray) -> tuple[Scales, float | None]:
    from scipy.optimize import nnls

    weight = 1 / (busy_ns + _SLACK_NS)
    matrix = work_ns * weight[:, None]
    covariance = np.linalg.pinv(matrix.T @ matrix)
    spread = np.sqrt(np.diag(covariance))
    correlation = float(covariance[0, 1] / (spread[0] * spread[1])) if spread.all() else -1.0
    solution, _ = nnls(matrix, busy_ns * weight)
    if abs(correlation) > MOST_CORRELATION or not solution.all():
        return _one_scale(work_ns, busy_ns), None
    return Scales(*map(float, solution)), correlation


def _one_scale(work_ns: np.ndarray, busy_ns: np.ndarray) -> Scales:
    weight = 1 / (busy_ns + _SLACK_NS)
    work, busy = work_ns.sum(axis=1) * weight, busy_ns * weight
    scale = float((work @ busy) / (work @ work))
    return Scales(scale, scale)


def _intervals(
    work_ns: np.ndarray, busy_ns: np.ndarray, *, is_one: bool
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of both scales, from fits to parts of the run drawn with replacement: requests side by side share their steps."""
    parts = np.array_split(np.arange(len(busy_ns)), _PARTS)
    draw = np.random.default_rng(0)
    fits = []
    for _ in range(_RESAMPLES):
        rows = np.concatenate([parts[index] for index in draw.integers(0, _PARTS, _PARTS)])
        fits.append(_one_scale(work_ns[rows], busy_ns[rows]) if is_one else _fit(work_ns[rows], busy_ns[rows])[0])
    (decode_low, decode_high), (prefill_low, prefill_high) = np.quantile(fits, [0.05, 0.95], axis=0).T.tolist()
    return (decode_low, decode_high), (prefill_low, prefill_high)
