"""An adjustment of a step-time model, fitted to when a server's requests got their tokens.

A request's time from its first to its last token is the sum of the steps between them, and so is the time that it
waits for the first one, while the server is busy. The simulation says which steps those are and how long each would
take. The fit says by which factor those that only decode take longer, and those that compute prompts, and what every
step takes besides (least squares of errors relative to the time and three seconds more, no number below 0). Other times
mean other steps: simulation and fit take turns until they agree, or ``MOST_ROUNDS`` times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvtwin.experiments.records.reader import Columns
from kvtwin.experiments.server_runs.served import ServedRequest

LEAST_REQUESTS = 30
"""Fewest requests with two output tokens or more that a fit makes sense of."""

MOST_CORRELATION = 0.98
"""Of two numbers; above, the record cannot tell them apart."""

MOST_ROUNDS = 12
AGREED = 0.005
"""What share of the steps' time a fit may differ by from the simulation that it was made from."""

_PARTS = 10
_RESAMPLES = 400


class Scales(NamedTuple):
    """How a model's steps are stretched."""

    decode: float = 1.0
    """Factor of those in which all sequences decode."""
    prefill: float = 1.0
    """Factor of those that compute tokens of prompts."""
    step_ns: float = 0.0
    """Added to every step."""


class Adjustment(NamedTuple):
    """The fitted numbers, and how well the record determines them."""

    scales: Scales
    intervals: tuple[tuple[float, float], ...]
    """Of 90 %, of each number."""
    correlation: float | None
    """Of both scales; None where the record cannot tell them apart, and one was fitted for all steps."""
    num_measured: int
    """Measurements that were fitted: times of requests, to the first token and from it to the last; or lines."""
    median_error: float
    """Of these times, or of the tokens generated up to each line, without sign, after the fit."""
    apart: float
    """What share of the steps' time the last fit and the simulation that it was made from differ by."""
    measured: str = "times of requests"
    """What the measurements are."""

    @property
    def is_settled(self) -> bool:
        """Whether fit and simulation agree."""
        return self.apart < AGREED


class Served(NamedTuple):
    """A simulation of the same requests with adjusted steps."""

    requests: Columns
    steps: Columns
    """With a column ``replica`` where there are several."""
    steps_together: bool = False
    """Whether a step of one replica lasts as long as those of the others that start with it."""


Simulate = Callable[[Scales], Served]

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
            f"expected at least {LEAST_REQUESTS} requests of two output tokens or more, got {num_usable}: record more "
            "requests, or longer outputs"
        )
    used = Scales()
    for _ in range(MOST_ROUNDS):
        work_ns, busy_ns = _rows(known, simulate(used), used, known_until_ns)
        scales, correlation = fit_rows(work_ns, busy_ns)
        apart = np.abs(work_ns.sum(axis=0) * np.subtract(scales, used)).sum() / busy_ns.sum()
        if apart < AGREED:
            break
        used = Scales(*np.mean([used, scales], axis=0).tolist())
    intervals = _intervals(work_ns, busy_ns)
    errors = np.abs(work_ns @ scales / busy_ns - 1)
    return Adjustment(scales, intervals, correlation, len(busy_ns), float(np.median(errors)), float(apart))


def _rows(
    known: dict[str, ServedRequest], simulated: Served, used: Scales, until_ns: float
) -> tuple[np.ndarray, np.ndarray]:
    """Of each known time, in order of its end: what multiplies the numbers of an adjustment, and the measurement.

    These are the time of both kinds of unadjusted steps in it, and the number of steps.

    While the simulated server is idle, the measured one is taken to be idle too.
    """
    rows = []
    steps = simulated.steps
    prompts = steps["tokens"] > steps["sequences"]
    if simulated.steps_together:
        prompts = np.isin(steps["start_ns"], steps["start_ns"][prompts])
    steps = steps | {"prompts": prompts}
    for replica in range(int(max(steps.get("replica", [0]))) + 1):
        own_steps, own_requests = (_of_replica(columns, replica) for columns in (steps, simulated.requests))
        rows += _rows_of_server(known, own_requests, own_steps, used, until_ns)
    if len(rows) < LEAST_REQUESTS:
        raise ValueError(f"only {len(rows)} times of {len(known)} requests can be compared with the simulated server's")
    table = np.array(sorted(rows, key=lambda row: row[4]), dtype=float)
    return table[:, :3], table[:, 3]


def _of_replica(columns: Columns, replica: int) -> Columns:
    """Rows of one of several servers; all of them where there is one."""
    if "replica" not in columns:
        return columns
    return {name: values[columns["replica"] == replica] for name, values in columns.items()}


def _rows_of_server(
    known: dict[str, ServedRequest],
    requests: Columns,
    steps: Columns,
    used: Scales,
    until_ns: float,
) -> Iterator[tuple[float, ...]]:
    started_ns, spent_ns, prompts = steps["start_ns"], steps["end_ns"] - steps["start_ns"], steps["prompts"]
    moments = np.column_stack([started_ns, steps["end_ns"]]).ravel()

    def until(times_ns: list[int], step_ns: np.ndarray) -> np.ndarray:
        """What steps did up to some times, if each does ``step_ns`` evenly while it runs."""
        done = np.cumsum(step_ns)
        return np.interp(times_ns, moments, np.column_stack([done - step_ns, done]).ravel())

    names = ("request_id", "arrival_ns", "first_token_ns", "finish_ns")
    for name, *simulated_ns in zip(*(requests[name] for name in names), strict=True):
        request = known.get(str(name))
        if request is None or min(simulated_ns) < 0:
            continue
        steps_done = np.diff(until(simulated_ns, np.ones(len(spent_ns))))
        decode_ns = np.diff(until(simulated_ns, (spent_ns - used.step_ns) * ~prompts / used.decode))
        prefill_ns = np.diff(until(simulated_ns, (spent_ns - used.step_ns) * prompts / used.prefill))
        idle_ns = np.diff(simulated_ns) - np.diff(until(simulated_ns, spent_ns))
        measured_ns = np.diff([request.arrival_ns, request.first_token_ns, request.last_token_ns])
        for part, end_ns in enumerate((request.first_token_ns, request.last_token_ns)):
            busy_ns = measured_ns[part] - idle_ns[part]
            if end_ns <= until_ns and busy_ns > 0 and decode_ns[part] + prefill_ns[part] > 0:
                yield (decode_ns[part], prefill_ns[part], steps_done[part], busy_ns, end_ns)


def fit_rows(work_ns: np.ndarray, busy_ns: np.ndarray) -> tuple[Scales, float | None]:
    """All three numbers; without what is added to every step, or with one scale, where more cannot be told."""
    matrix, target = _weighted(work_ns, busy_ns)
    correlations = _correlations(matrix)
    if np.abs(correlations[:2, 2]).max() <= MOST_CORRELATION and abs(correlations[0, 1]) <= MOST_CORRELATION:
        solution = _solve(matrix, target)
        if all(solution[:2]):
            return Scales(*solution), float(correlations[0, 1])
    matrix = matrix[:, :2]
    correlation = _correlations(matrix)[0, 1]
    if abs(correlation) <= MOST_CORRELATION and all(solution := _solve(matrix, target)):
        return Scales(*solution), float(correlation)
    both = matrix.sum(axis=1)
    scale = float((both @ target) / (both @ both))
    return Scales(scale, scale), None


def _weighted(work_ns: np.ndarray, busy_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    weight = 1 / (busy_ns + _SLACK_NS)
    return work_ns * weight[:, None], busy_ns * weight


def _correlations(matrix: np.ndarray) -> np.ndarray:
    """Of the numbers that are fitted with ``matrix``; -1 of one that it does not depend on."""
    length = np.linalg.norm(matrix, axis=0)
    if not length.all():
        return np.full((matrix.shape[1],) * 2, -1.0)
    scaled = matrix / length
    covariance = np.linalg.pinv(scaled.T @ scaled)
    spread = np.sqrt(np.diag(covariance))
    return np.array(covariance / np.outer(spread, spread))


def _solve(matrix: np.ndarray, target: np.ndarray) -> list[float]:
    from scipy.optimize import nnls

    length = np.linalg.norm(matrix, axis=0)
    solution, _ = nnls(matrix / length, target)
    return [float(value) for value in solution / length]


def _intervals(work_ns: np.ndarray, busy_ns: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Of each number, from fits to parts of the run drawn with replacement: requests side by side share their steps."""
    return interval_of_parts(len(busy_ns), lambda rows: np.array(fit_rows(work_ns[rows], busy_ns[rows])[0]))


def interval_of_parts(num_rows: int, fit: Callable[[np.ndarray], np.ndarray]) -> tuple[tuple[float, float], ...]:
    """Of 90 %, of each number that ``fit`` finds in some rows, from parts of them drawn with replacement."""
    parts = np.array_split(np.arange(num_rows), _PARTS)
    draw = np.random.default_rng(0)
    fits = [
        fit(np.concatenate([parts[index] for index in draw.integers(0, _PARTS, _PARTS)])) for _ in range(_RESAMPLES)
    ]
    return tuple((float(low), float(high)) for low, high in np.quantile(fits, [0.05, 0.95], axis=0).T)
