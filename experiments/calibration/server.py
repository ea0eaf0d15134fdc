"""A step-time model fitted to what a server recorded of its requests."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.experiments.calibration.adjustment import MOST_ROUNDS, Adjustment, Scales, Served, fit_adjustment
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.options.reading import option_key, read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.kept import columns_of
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import arriving_as_served
from kvtwin.experiments.setup.sizing import resolve_sizing
from kvtwin.experiments.setup.step_time import COMPUTED, server_step_time
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.experiments.sweeps.spec import named_options
from kvtwin.sim.adjusted import AdjustedStepTime
from kvtwin.workloads.formats.in_memory import workload_of

NAMES = ("decode_scale", "prefill_scale", "step_ns")
"""Of the numbers of an adjustment, in its file."""


class ServerFit(NamedTuple):
    """What was fitted, to what."""

    base: str
    """The step-time model that is adjusted."""
    adjustment: Adjustment
    facts: dict[str, float | int | str]

    def data(self) -> dict[str, Any]:
        """The file for ``--step-time``."""
        fit = self.adjustment
        return {
            "model": "adjusted",
            "base": self.base,
            "decode_scale": round(fit.scales.decode, 4),
            "prefill_scale": round(fit.scales.prefill, 4),
            "step_ns": round(fit.scales.step_ns),
            "measured": {**self.facts, "times": fit.num_times, "median_error": round(fit.median_error, 4)},
        }

    def lines(self) -> list[str]:
        """How well the record determines it."""
        fit = self.adjustment
        lines = [
            f"{self.base} adjusted to {fit.num_times:,} times of requests; after the fit they differ by "
            f"{fit.median_error:.1%} (median)"
        ]
        for name, value, (low, high) in zip(NAMES, fit.scales, fit.intervals, strict=True):
            if name == "step_ns" and not high:
                lines.append("no time that every step takes besides: the record cannot tell it from a factor")
                continue
            digits = ",.0f" if name == "step_ns" else ".3f"
            value_text, low_text, high_text = (format(number, digits) for number in (value, low, high))
            lines.append(f"{name:<13} {value_text} (90 % interval {low_text} to {high_text})")
        if not fit.is_settled:
            lines.append(
                f"fit and simulation still differ by {fit.apart:.1%} of the steps' time after {MOST_ROUNDS} rounds: "
                "take the numbers with care"
            )
        if fit.correlation is None:
            return [*lines, "one scale for all steps: the record cannot tell steps with prompts from others"]
        return [*lines, f"correlation of both scales {fit.correlation:.2f}"]


def fit_to_server(record: Path, server: Path, *, known_until_ns: float = float("inf")) -> ServerFit:
    """Fit the step-time model that ``server`` chooses to ``record``, as far as was known at ``known_until_ns``.

    ``server`` is a YAML file with ``trace`` and ``options`` of a replay. UserError: it has a mistake, the record is of
    other requests, or too few.
    """
    options = _options(server)
    served = read_served(record)
    known = [request for request in served if request.arrival_ns <= known_until_ns]
    sizing = resolve_sizing(options)
    base = server_step_time(options.step_time, options, sizing.inputs)
    names = [request._replace(request_id=str(index)) for index, request in enumerate(known)]

    def simulate(scales: Scales) -> Served:
        records = arriving_as_served(islice(open_trace(options.trace, options), options.num_prompts), served)
        records = records[: len(known)]
        for index, each in enumerate(records):
            each.request_id = str(index)
        replayed = replay(options, workload_of(records), change=lambda _: AdjustedStepTime(base, *scales))
        requests, steps = (columns_of(rows) for rows in (replayed.recorder.requests, replayed.recorder.steps))
        return Served(requests, steps, "forward_passes" in replayed.summary)

    try:
        adjustment = fit_adjustment(names, simulate, known_until_ns=known_until_ns)
    except ValueError as error:
        raise UserError(f"{record}: {error}") from None
    facts = {
        "record": record.name,
        "model": sizing.inputs.shape.name,
        "requests": len(known),
        "kvtwin": kvtwin_version(),
    }
    return ServerFit(options.step_time, adjustment, facts)


def _options(server: Path) -> ReplayOptions:
    """UserError: a mistake in the file, or a step-time model that holds all of a step's time already."""
    spec = check_mapping(str(server), read_yaml(server), ("trace", "options"))
    if not spec.get("trace"):
        raise UserError(f"{server}: trace: expected a workload file")
    given = named_options(str(server), "options", spec.get("options") or {})
    below = {option_key(name): value for name, value in given.items()}
    try:
        options = read_options(ReplayOptions, below | {"trace": str(spec["trace"])}, "kvtwin replay")
    except UserError as error:
        raise UserError(f"{server}: options: {error}") from None
    if options.step_time not in COMPUTED:
        raise UserError(f"{server}: options: step-time: expected {' or '.join(COMPUTED)}, got {options.step_time!r}")
    return options
