"""Replays at rates that bisection asks for, on all CPUs, until every criterion's limit is found.

What is found does not depend on how many processes look for it: those that would be idle replay what may be asked next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.limits.bracket import Bracket, RateGrid
from kvtwin.experiments.options.limit import LimitOptions
from kvtwin.experiments.sweeps.point import summary_of
from kvtwin.workloads.workload import Workload

Summary = dict[str, Any]

_MOST_BREAKS = 3
"""How often the processes may lose one of theirs before the search gives up."""


@dataclass(frozen=True)
class Criterion:
    """What must hold in a replay: a figure of its summary is at most ``bound``.

    The figure is that of ``key``, or, with ``below``, how far it is below that of ``below``.
    """

    name: str
    key: str
    bound: float
    below: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """What it reads in a summary."""
        return (self.key,) if self.below is None else (self.key, self.below)

    def value(self, summary: Summary) -> float:
        """The figure."""
        figure: float = summary[self.key]
        return figure if self.below is None else summary[self.below] - figure

    def holds(self, summary: Summary) -> bool:
        """Whether it does."""
        return self.value(summary) <= self.bound


@dataclass
class Search:
    """The limits of one server, and the replays that found them."""

    options: LimitOptions
    """Options of its replays, at any rate."""
    rate_option: str
    """The option that is varied, as a name of ``options``."""
    grid: RateGrid
    criteria: tuple[Criterion, ...]
    workload: Workload | None = None
    """What is sent instead of the options' trace."""
    replays: dict[int, Summary] = field(default_factory=dict)
    """Summaries by step of the grid."""
    error: str | None = None
    """Why the server cannot be replayed."""

    def path(self, criteria: tuple[Criterion, ...]) -> Iterator[tuple[int, Bracket]]:
        """The steps that the search for all of ``criteria`` together has taken, and the bracket after each."""
        bracket = Bracket(self.grid)
        while (step := bracket.next_step) is not None and step in self.replays:
            bracket = bracket.after(step, self.holds(criteria, step))
            yield step, bracket

    def bracket(self, criteria: tuple[Criterion, ...]) -> Bracket:
        """How far the search for all of ``criteria`` together has come."""
        return next((bracket for _, bracket in reversed(list(self.path(criteria)))), Bracket(self.grid))

    def holds(self, criteria: tuple[Criterion, ...], step: int) -> bool:
        """Whether ``criteria`` hold at a step that was replayed."""
        return all(criterion.holds(self.replays[step]) for criterion in criteria)

    @property
    def steps(self) -> list[int]:
        """All steps that some search has taken, without those that were replayed in vain."""
        return sorted({step for criteria in self.questions for step, _ in self.path(criteria)})

    def contradictions(self, criteria: tuple[Criterion, ...]) -> list[int]:
        """Steps that failed below the limit, or held above it."""
        bracket = self.bracket(criteria)
        return [
            step
            for step in self.steps
            if (bracket.held is not None and step < bracket.held and not self.holds(criteria, step))
            or (bracket.failed is not None and step > bracket.failed and self.holds(criteria, step))
        ]

    @property
    def questions(self) -> list[tuple[Criterion, ...]]:
        """What limits are looked for: each criterion's, and that of all together."""
        alone = [(criterion,) for criterion in self.criteria]
        return [*alone, self.criteria] if len(alone) > 1 else alone

    def wanted_steps(self) -> tuple[list[int], list[int]]:
        """Steps to replay now, and those that may be wanted next."""
        brackets = [self.bracket(criteria) for criteria in self.questions if self.error is None]
        now = list(dict.fromkeys(b.next_step for b in brackets if b.next_step is not None))
        nexts = [
            b.after(b.next_step, held).next_step for b in brackets if b.next_step is not None for held in (True, False)
        ]
        later = dict.fromkeys(step for step in nexts if step is not None)
        return now, [step for step in later if step not in self.replays and step not in now]

    def unknown_figure(self, summary: Summary) -> str | None:
        """The first criterion that cannot be judged."""
        names = (c.name for c in self.criteria if any(summary[key] is None for key in c.keys))
        return next(names, None)

    def options_at(self, step: int) -> LimitOptions:
        """The options of the replay at a step."""
        return replace(self.options, **{self.rate_option: self.grid.rate(step)})


def find_limits(
    searches: list[Search], make_executor: Callable[[], Executor], workers: int, on_replay: Callable[[], None]
) -> None:
    """Fill in the replays of ``searches``. UserError: processes are lost again and again."""
    for _ in range(_MOST_BREAKS):
        executor = make_executor()
        try:
            _fill_in(searches, executor, workers, on_replay)
            return
        except BrokenExecutor:
            pass
        finally:
            executor.shutdown(wait=False)  # what was replayed ahead is not waited for
    raise UserError(f"a replay lost its process {_MOST_BREAKS} times (killed, or out of memory?); try --workers 1")


def _fill_in(searches: list[Search], executor: Executor, workers: int, on_replay: Callable[[], None]) -> None:
    running: dict[Future[Summary | str], tuple[int, int]] = {}
    while True:
        missing, speculative = [], []
        for index, search in enumerate(searches):
            now, later = search.wanted_steps()
            missing += [(index, step) for step in now]
            speculative += [(index, step) for step in later]
        if not missing:
            return
        started = set(running.values())
        for index, step in _first(missing + speculative, started, workers):
            search = searches[index]
            running[executor.submit(summary_of, search.options_at(step), search.workload)] = index, step
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            index, step = running.pop(future)
            outcome = future.result()
            on_replay()
            if isinstance(outcome, str):
                searches[index].error = outcome
            elif not outcome["completed"]:
                searches[index].error = "; ".join(["no request was completed", *outcome["verdicts"]])
            elif unknown := searches[index].unknown_figure(outcome):
                searches[index].error = f"{unknown}: not known for this trace"
            else:
                searches[index].replays[step] = outcome


def _first(jobs: list[tuple[int, int]], started: set[tuple[int, int]], workers: int) -> Iterator[tuple[int, int]]:
    """As many of the jobs that are not started as there are idle processes."""
    idle = workers - len(started)
    for job in jobs:
        if idle <= 0:
            return
        if job not in started:
            started.add(job)
            idle -= 1
            yield job
