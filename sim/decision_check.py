"""Whether a measured run decided, and its device did, what a simulation decides that is fed with its outputs.

Nothing here is an estimate: any difference is a bug of the executor or of the engine, never noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, NamedTuple

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.engine.executor import Executor
from kvtwin.sim.decided_steps import DecidedStep, DecisionRecorder
from kvtwin.sim.replayed_executor import RecordEndsError, ReplayedExecutor
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord

MOST_DIFFERENCES = 1_000
"""How many are looked for: the first ones say what went wrong."""

_PER_REQUEST = ("num_computed_tokens", "num_tokens", "block_tables", "output_tokens")
"""Fields of a decided step that are parallel to its requests."""

_DECIDED = [field.name for field in fields(DecidedStep) if field.name != "shape"]


class Difference(NamedTuple):
    """Something that is not as the fed simulation has it."""

    step: int
    source: str
    """``engine``: the measured run decided otherwise; ``device``: its executor did otherwise."""
    request_id: str | None
    """None where the whole step is meant."""
    field: str
    """What differs; of sequences, with the position of the first entry that does."""
    expected: Any
    """What the fed simulation has."""
    got: Any

    def __str__(self) -> str:
        whose = "" if self.request_id is None else f", request {self.request_id}"
        return f"step {self.step}{whose}: {self.source} {self.field}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class DecisionCheck:
    """What came of a comparison."""

    num_steps: int
    """Steps that were compared: all that the device completed, unless the run went another way."""
    differences: Sequence[Difference]
    """The first of them, in order; no more than `MOST_DIFFERENCES`."""

    @property
    def passed(self) -> bool:
        """Whether every decision was equal, and there was any."""
        return self.num_steps > 0 and not self.differences


Run = Callable[[Iterable[RequestRecord]], object]
"""Serves a workload."""

ServersOn = Callable[[Sequence[Executor[Any]]], tuple[Sequence[ServerSimulation], Run]]
"""Makes servers, each on one of the executors, and what runs them."""


def check_decisions(
    simulation_with: Callable[[Executor[Any]], ServerSimulation],
    workload: Iterable[RequestRecord],
    decided: Sequence[DecidedStep],
    executed: Sequence[ExecutedStep],
    *,
    ended_early: bool = False,
) -> DecisionCheck:
    """Simulate a measured run once more, fed with what its device delivered, and compare step by step.

    ``simulation_with`` makes a server with the settings of the measured one, of which ``decided`` and ``executed`` were
    kept. A run that ``ended_early`` is compared as far as its device came.
    """

    def servers_on(executors: Sequence[Executor[Any]]) -> tuple[Sequence[ServerSimulation], Run]:
        simulation = simulation_with(executors[0])
        return [simulation], simulation.run

    return check_replicas(servers_on, workload, [(decided, executed)], ended_early=ended_early)[0]


def check_replicas(
    servers_on: ServersOn,
    workload: Iterable[RequestRecord],
    measured: Sequence[tuple[Sequence[DecidedStep], Sequence[ExecutedStep]]],
    *,
    ended_early: bool = False,
) -> list[DecisionCheck]:
    """:func:`check_decisions` of several servers behind a router, which has to send every request as it did.

    ``measured`` has of each what it decided and executed. Where the record of one ends, so does the comparison of all.
    """
    executors = [ReplayedExecutor(executed) for _, executed in measured]
    simulations, run = servers_on(executors)
    fed = [DecisionRecorder(simulation.scheduler) for simulation in simulations]
    for simulation, recorder in zip(simulations, fed, strict=True):
        simulation.observers.append(recorder)
    record_ends = False
    try:
        run(workload)
    except RecordEndsError:  # what is missing, or which step went another way, is found below
        record_ends = True
    checks = []
    for recorder, executor, (decided, executed) in zip(fed, executors, measured, strict=True):
        found = _differences(
            recorder,
            decided,
            executed,
            ended_early=ended_early,
            lacks_outputs=executor.lacks_outputs and not ended_early,
            is_cut_short=record_ends and not executor.lacks_outputs,
        )
        num_steps = min(len(recorder.steps), len(decided), len(executed))
        checks.append(DecisionCheck(num_steps, list(islice(found, MOST_DIFFERENCES))))
    return checks


def _differences(
    fed: DecisionRecorder,
    decided: Sequence[DecidedStep],
    executed: Sequence[ExecutedStep],
    *,
    ended_early: bool,
    lacks_outputs: bool,
    is_cut_short: bool,
) -> Iterator[Difference]:
    """``is_cut_short``: the fed simulation stopped because the record of another server ended."""
    for position, (expected, got) in enumerate(zip(fed.steps, decided, strict=False)):
        yield from _decided_otherwise(expected, got)
        if position < len(executed):
            yield from _done_otherwise(expected, executed[position], fed.block_size)
        elif lacks_outputs:  # else nobody asked for it: a server that hangs leaves a step behind
            yield Difference(expected.index, "device", None, "record", "there", "missing")
    if is_cut_short:
        return
    if len(executed) > len(fed.steps) or (len(decided) != len(fed.steps) and not ended_early):
        yield Difference(len(fed.steps), "engine", None, "steps", len(fed.steps), max(len(decided), len(executed)))


def _decided_otherwise(expected: DecidedStep, got: DecidedStep) -> Iterator[Difference]:
    """What the engine of the measured run decided otherwise."""
    same_requests = expected.request_ids == got.request_ids
    for name in _DECIDED:
        one, other = getattr(expected, name), getattr(got, name)
        if one == other or None in (one, other):  # None: the step was in flight at the end
            continue
        if name not in _PER_REQUEST:
            yield _difference(expected.index, "engine", None, name, one, other)
        elif same_requests:
            yield from _per_request(expected, "engine", name, one, other)


def _done_otherwise(expected: DecidedStep, got: ExecutedStep, block_size: int) -> Iterator[Difference]:
    """What the device did otherwise than the engine of the fed run decides."""
    if expected.index != got.index:
        yield Difference(expected.index, "device", None, "index", expected.index, got.index)
        return
    if list(expected.request_ids) != list(got.request_ids):
        yield _difference(expected.index, "device", None, "request_ids", expected.request_ids, got.request_ids)
        return
    yield from _per_request(expected, "device", "block_tables", expected.block_tables, got.block_tables)
    yield from _per_request(expected, "device", "slots", expected.slots(block_size), got.slots)


def _per_request(
    step: DecidedStep, source: str, name: str, expected: Sequence[Any], got: Sequence[Any]
) -> Iterator[Difference]:
    for request_id, one, other in zip(step.request_ids, expected, got, strict=True):
        if not _equal(one, other):
            yield _difference(step.index, source, request_id, name, one, other)


def _equal(one: Any, other: Any) -> bool:
    return list(one) == list(other) if isinstance(one, Sequence) else bool(one == other)


def _difference(step: int, source: str, request_id: str | None, name: str, expected: Any, got: Any) -> Difference:
    """With two sequences of equal length, the first entry that differs."""
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        expected, got = list(expected), list(got)
        if len(expected) == len(got):
            position = next(index for index, (one, other) in enumerate(zip(expected, got, strict=True)) if one != other)
            return Difference(step, source, request_id, f"{name}[{position}]", expected[position], got[position])
    return Difference(step, source, request_id, name, expected, got)
