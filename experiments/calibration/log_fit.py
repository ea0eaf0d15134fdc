"""An adjustment of a step-time model, fitted to the lines that a server printed while it ran.

Such lines say how many prompt and output tokens a server has handled so far, and how many requests run and wait. The
same requests are simulated, and the step times changed until the simulation says the same (Gauss and Newton's method:
derivatives are differences of simulations). When the first request came, the lines do not say; it is fitted too.

They tell how fast a server is, and not whether that is because of steps with prompts or of others: on the lines of a
public run, factors of 0.93 and 1.34 fitted as well as 1.03 and 1.03. So there is one factor for all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kvtwin.experiments.calibration.adjustment import (
    MOST_ROUNDS,
    Adjustment,
    Scales,
    Served,
    interval_of_parts,
)
from kvtwin.experiments.server_runs.server_log import ServerLog
from kvtwin.workloads.time_units import SECOND_NS

MOST_UNCERTAINTY = 1.5
"""Ratio of the bounds of the factor's interval; above, the log does not determine it."""
MOST_APART = 0.05
"""By what share the log's output tokens may differ from the trace's."""

_STEP = 0.1
"""By how much the factor's logarithm is changed, up and down, to see what hangs on it."""
_SHIFT = 0.3
"""The same of the start, in intervals."""
_AGREED = 0.003
"""By how much the logarithm may still change at the end."""
_MOST_CHANGE = 0.4
"""Of the logarithm, at once."""
_QUANTILE = 1.645
"""Deviations that 90 % of a normal distribution lie within."""

Simulate = Callable[[Scales], Served]


def fit_to_log(log: ServerLog, simulate: Simulate) -> Adjustment:
    """The factor of all steps that brings a simulation near to ``log``.

    ValueError: the log is of other requests, or does not determine the factor.
    """
    served = simulate(Scales())
    measured = _so_far(log.prompt_tokens, log.generated_tokens, log.running, log.waiting)
    _check_tokens(measured[1, -1], int(np.asarray(served.requests["output_tokens"]).sum()))
    largest = np.maximum(measured.max(axis=1), 1)
    weights = 1 / largest
    logarithm, start_s = 0.0, _best_start_s(log, served, measured, weights)

    def seen(of: Served, later_s: float = 0.0) -> np.ndarray:
        return _simulated_so_far(of, log.ends_s + start_s + later_s)

    def at(value: float) -> Served:
        return simulate(Scales(math.exp(value), math.exp(value)))

    for _ in range(MOST_ROUNDS):
        by_factor = (seen(at(logarithm + _STEP)) - seen(at(logarithm - _STEP))) / (2 * _STEP)
        shift_s = _SHIFT * log.interval_s
        by_start = (seen(served, shift_s) - seen(served, -shift_s)) / (2 * shift_s)
        matrix = np.stack([by_factor, by_start], axis=-1) * weights[:, None, None]
        missing = (measured - seen(served)) * weights[:, None]
        linearised_at = logarithm
        change, later_s = _solution(matrix, missing, np.arange(missing.shape[1]))
        apart = float(np.clip(change, -_MOST_CHANGE, _MOST_CHANGE))
        logarithm += apart
        start_s += float(np.clip(later_s, -log.interval_s, log.interval_s))
        served = at(logarithm)
        left = measured - seen(served)
        weights = 1 / np.maximum(np.sqrt((left**2).mean(axis=1)), 0.01 * largest)
        if abs(apart) < _AGREED:
            break
    changes = interval_of_parts(missing.shape[1], lambda lines: _solution(matrix, missing, lines)[:1])[0]
    low, high = (math.exp(linearised_at + bound) for bound in _wider(changes, matrix))
    if not high <= MOST_UNCERTAINTY * low:
        raise ValueError(
            f"its lines do not determine how long steps take (any factor from {low:.2g} to {high:.2g} would do): "
            "record requests with vllm bench serve --save-result --save-detailed"
        )
    known = measured[1] > 0.1 * measured[1, -1]
    error = float(np.median(np.abs(left[1] / np.maximum(measured[1], 1))[known]))
    scales = Scales(math.exp(logarithm), math.exp(logarithm))
    intervals = ((low, high), (low, high), (0.0, 0.0))
    return Adjustment(scales, intervals, None, missing.shape[1], error, abs(apart), measured="lines of its log")


def _wider(bounds: tuple[float, float], matrix: np.ndarray) -> list[float]:
    """Bounds of the logarithm's change, with what the weights allow beside what differs between parts of the log."""
    of_lines = matrix.reshape(-1, matrix.shape[-1])
    deviation = math.sqrt(np.linalg.pinv(of_lines.T @ of_lines)[0, 0]) if of_lines[:, 0].any() else math.inf
    middle = sum(bounds) / 2
    half = math.hypot((bounds[1] - bounds[0]) / 2, _QUANTILE * deviation)
    return [middle - half, middle + half]


def _check_tokens(logged: float, sent: int) -> None:
    if abs(logged - sent) > MOST_APART * sent:
        raise ValueError(
            f"its lines tell of {logged:,.0f} output tokens, and the requests of the trace have {sent:,}: give the log "
            "of these requests alone, and their output lengths as they were"
        )


def _best_start_s(log: ServerLog, served: Served, measured: np.ndarray, weights: np.ndarray) -> float:
    """When the first interval ended, since the first arrival: the best of some times around it."""
    starts_s = np.linspace(-1, 2, 61) * log.interval_s
    apart = [
        (((measured - _simulated_so_far(served, log.ends_s + start_s)) * weights[:, None]) ** 2).sum()
        for start_s in starts_s
    ]
    return float(starts_s[int(np.argmin(apart))])


def _solution(matrix: np.ndarray, missing: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Least squares over some of the lines."""
    of_lines = matrix[:, lines].reshape(-1, matrix.shape[-1])
    return np.asarray(np.linalg.lstsq(of_lines, missing[:, lines].ravel(), rcond=None)[0])


def _so_far(prompt: np.ndarray, generated: np.ndarray, running: np.ndarray, waiting: np.ndarray) -> np.ndarray:
    """A row each: tokens of prompts and generated ones so far, requests that run and that wait."""
    return np.stack([np.cumsum(prompt), np.cumsum(generated), running, waiting])


def _simulated_so_far(served: Served, times_s: np.ndarray) -> np.ndarray:
    """What the simulated server would have printed at ``times_s``.

    The prompt of a request counts when its first output token comes, and the others evenly up to its last.
    """
    requests = {name: np.asarray(values) for name, values in served.requests.items() if name != "request_id"}
    ended = requests["finish_ns"] >= 0
    arrival_s, scheduled_s, first_s, last_s = (
        requests[name][ended] / SECOND_NS
        for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns")
    )
    times = np.asarray(times_s)[:, None] + arrival_s.min()
    computed = requests["prompt_tokens"][ended] - np.maximum(requests["hit_tokens"][ended], 0)
    has_begun = times >= first_s
    done = np.clip((times - first_s) / np.maximum(last_s - first_s, 1e-9), 0, 1)
    generated = has_begun * (1 + done * (requests["output_tokens"][ended] - 1))
    unfinished = ((times >= arrival_s) & (times < last_s)).sum(axis=1)
    running = ((times >= scheduled_s) & (times < last_s)).sum(axis=1)
    return np.stack([(has_begun * computed).sum(axis=1), generated.sum(axis=1), running, unfinished - running])
