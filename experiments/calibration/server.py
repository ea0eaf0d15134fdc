"""A step-time model fitted to what a server recorded of its requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.experiments.calibration.adjustment import MOST_ROUNDS, Adjustment, Scales, Served, fit_adjustment
from kvtwin.experiments.calibration.log_fit import fit_to_log
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.options.reading import option_key, read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.kept import columns_of
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.server_runs.limits import with_limits
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import arriving_as_served
from kvtwin.experiments.server_runs.server_log import ServerLog, read_server_log
from kvtwin.experiments.setup.sizing import resolve_sizing
from kvtwin.experiments.setup.step_time import COMPUTED, server_step_time
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.experiments.sweeps.spec import named_options
from kvtwin.sim.adjusted import AdjustedStepTime
from kvtwin.sim.server_step_time import ServerStepTime
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.in_memory import workload_of
from kvtwin.workloads.workload import Workload

NAMES = ("decode_scale", "prefill_scale", "step_ns")
"""Of the numbers of an adjustment, in its file."""


class ServerFit(NamedTuple):
    """What was fitted, to what."""

    base: str
    """The step-time model that is adjusted."""
    adjustment: Adjustment
    facts: dict[str, float | int | str]
    notes: tuple[str, ...] = ()
    """What else the record says, beside the simulation."""

    def data(self) -> dict[str, Any]:
        """The file for ``--step-time``."""
        fit = self.adjustment
        return {
            "model": "adjusted",
            "base": self.base,
            "decode_scale": round(fit.scales.decode, 4),
            "prefill_scale": round(fit.scales.prefill, 4),
            "step_ns": round(fit.scales.step_ns),
            "measured": {
                **self.facts,
                fit.measured.partition(" ")[0]: fit.num_measured,
                "median_error": round(fit.median_error, 4),
            },
        }

    def lines(self) -> list[str]:
        """How well the record determines it."""
        fit = self.adjustment
        lines = [
            *self.notes,
            f"{self.base} adjusted to {fit.num_measured:,} {fit.measured}; after the fit they differ by "
            f"{fit.median_error:.1%} (median)",
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
            text = "one scale for all steps: the record cannot tell steps with prompts from others"
            if fit.measured != "times of requests":
                text += "; the times of requests can (vllm bench serve --save-result --save-detailed)"
            return [*lines, text]
        return [*lines, f"correlation of both scales {fit.correlation:.2f}"]


def fit_to_server(record: Path, server: Path, *, known_until_ns: float = float("inf")) -> ServerFit:
    """Fit the step-time model that ``server`` chooses to ``record``: of requests, or the log that a server printed.

    ``server`` is a YAML file with ``trace`` and ``options`` of a replay. Of requests, what was known at
    ``known_until_ns`` counts. UserError: it has a mistake, the record is of other requests, or too few.
    """
    options = _options(server)
    is_log = not record.is_dir() and record.suffix not in (".json", ".jsonl")
    try:
        return _fit_to_log(record, options) if is_log else _fit_to_requests(record, options, known_until_ns)
    except WorkloadError:
        raise  # it names the trace
    except ValueError as error:
        raise UserError(f"{record}: {error}") from None


def _fit_to_requests(record: Path, options: ReplayOptions, known_until_ns: float) -> ServerFit:
    served = read_served(record)
    known = [request for request in served if request.arrival_ns <= known_until_ns]
    server = _AdjustedServer(options)
    names = [request._replace(request_id=str(index)) for index, request in enumerate(known)]

    def simulate(scales: Scales) -> Served:
        records = arriving_as_served(islice(open_trace(options.trace, options), options.num_prompts), served)
        records = records[: len(known)]
        for index, each in enumerate(records):
            each.request_id = str(index)
        return server.served(scales, workload_of(records))

    adjustment = fit_adjustment(names, simulate, known_until_ns=known_until_ns)
    return ServerFit(options.step_time, adjustment, server.facts(record, len(known)))


def _fit_to_log(record: Path, options: ReplayOptions) -> ServerFit:
    log = read_server_log(record)
    server = _AdjustedServer(with_limits(str(record), _limits_of_log(log, options), options))
    adjustment = fit_to_log(log, server.served)
    facts = server.facts(record, server.summary["num_prompts"])
    return ServerFit(options.step_time, adjustment, facts, tuple(_beside_log(log, server.summary)))


def _beside_log(log: ServerLog, summary: dict[str, Any]) -> Iterator[str]:
    """What the log says that is not fitted."""
    if log.peak_usage:
        yield f"most of the cache that was used: {log.peak_usage:.1%}, simulated {summary['kv_cache_usage_peak']:.1%}"
    simulated = summary["prefix_cache_hit_rate_last_1000_requests"]
    if log.hit_rate is not None and simulated is not None:
        yield f"hit rate of the last 1000 requests: {log.hit_rate:.1%}, simulated {simulated:.1%}"


def _limits_of_log(log: ServerLog, options: ReplayOptions) -> dict[str, int]:
    """With the number of blocks, where its tokens tell it: every block holds tokens of all layers."""
    limits = dict(log.limits)
    groups = resolve_sizing(options).plan.groups
    if (tokens := limits.pop("capacity_tokens", None)) and len(groups) == 1:
        limits["num_gpu_blocks"] = tokens // groups[0].block_size
    return limits


class _Adjust(NamedTuple):
    """Makes the step times of a simulation, also in another process."""

    base: ServerStepTime
    scales: Scales

    def __call__(self, _: StepTimeModel) -> AdjustedStepTime:
        return AdjustedStepTime(self.base, *self.scales)


class _AdjustedServer:
    """A server whose step times are adjusted, again and again."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        inputs = resolve_sizing(options).inputs
        self._model = inputs.shape.name
        self._base = server_step_time(options.step_time, options, inputs)
        self.summary: dict[str, Any] = {}
        """Of the last simulation."""

    def served(self, scales: Scales, workload: Workload | None = None) -> Served:
        """What it does with ``workload``, or with the trace and the load of its options."""
        replayed = replay(self._options, workload, change=_Adjust(self._base, scales))
        self.summary = replayed.summary
        requests, steps = (columns_of(rows) for rows in (replayed.recorder.requests, replayed.recorder.steps))
        return Served(requests, steps, "forward_passes" in self.summary)

    def facts(self, record: Path, num_requests: int) -> dict[str, float | int | str]:
        """What the file says of its origin."""
        return {"record": record.name, "model": self._model, "requests": num_requests, "kvtwin": kvtwin_version()}


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
