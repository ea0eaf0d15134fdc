"""A server of a replay: what it is made of, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.block_metrics import block_metric_figures
from kvtwin.experiments.runs.facts import run_configuration, run_context
from kvtwin.experiments.runs.host_figures import host_figures
from kvtwin.experiments.runs.summary import summarise
from kvtwin.experiments.setup.servers import setup_of
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.experiments.setup.speculation import Drafting, read_drafting
from kvtwin.experiments.setup.step_time import step_time_model
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.lock_step import LockStep, LockStepRank
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import Observe, ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.sim.varied import VariedStepTime
from kvtwin.workloads.load import Load

ChangeStepTime: TypeAlias = Callable[[StepTimeModel], StepTimeModel]
"""Makes another step-time model of a server's own."""


@dataclass(frozen=True)
class Server:
    """What ``options`` say of a server."""

    options: ReplayOptions
    sizing: SizingResult
    speculation: Drafting | None
    config: EngineConfig
    step_time: StepTimeModel
    link: HostLink | None

    @classmethod
    def of(cls, options: ReplayOptions, change: ChangeStepTime | None = None) -> Server:
        """With the step times of the options, or what ``change`` makes of them. UserError: settings that cannot be."""
        speculation = read_drafting(options.speculative_config, async_scheduling=options.async_scheduling)
        setup = setup_of(options)
        sizing = setup.sizing(options, speculation)
        config = setup.engine_config(options, sizing, speculation)
        step_time = step_time_model(options, sizing.inputs)
        if change:
            step_time = change(step_time)
        return cls(options, sizing, speculation, config, step_time, setup.host_link(options, sizing))

    def simulation(
        self,
        misses: MissSources,
        *,
        clock: Clock | None = None,
        together: tuple[LockStep, int] | None = None,
        max_concurrency: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        observe: Observe | None = None,
        keys: KeySpace | None = None,
    ) -> ServerSimulation:
        """The server, watched by ``misses``; with a ``clock`` it is one of several, which may share ``keys``.

        ``together``: it steps together with others, as which rank of them.
        """
        acceptance = self.speculation.acceptance(self.options.seed) if self.speculation else None
        step_time = self.step_time
        if isinstance(step_time, VariedStepTime):  # equal replicas have one in common
            step_time = step_time.for_one_server()
        executor = SimulatedExecutor(step_time, self.link, acceptance)
        make = ServerSimulation if together is None else partial(LockStepRank, lock_step=together[0], rank=together[1])
        simulation = make(
            self.config,
            executor,
            clock=clock,
            ignore_eos=self.options.ignore_eos,
            max_concurrency=max_concurrency,
            check=self.options.check,
            observe=observe,
            on_progress=on_progress,
            on_refusal=_raise_refusal if self.options.strict else None,
            num_warm_up_requests=self.options.warmup_requests,
            keys=keys,
        )
        simulation.observers.append(misses)
        return simulation

    def lock_step(self, clock: Clock, num_ranks: int) -> LockStep | None:
        """What ``num_ranks`` ranks of the server have in common; None: they do not step together."""
        if self.sizing.inputs.data_parallel_size == 1:
            return None
        idle_pass = StepShape(1, 1, 0, context_tokens=1, prefill_attention_pairs=0, sampled_tokens=0)
        return LockStep(clock, num_ranks, self.step_time.duration_ns(idle_pass))

    def summary(self, recorder: Recorder, misses: MissSources, load: Load) -> dict[str, Any]:
        """The figures of a run, without verdicts."""
        context = run_context(self.sizing, load, recorder)
        summary = summarise(recorder, self.config, self.sizing.plan, context, self.options)
        summary |= host_figures(recorder, self.sizing, self.link) | misses.figures() | block_metric_figures(recorder)
        summary["num_warmup_requests"] = self.options.warmup_requests
        return summary

    def configuration(self, options: ReplayOptions) -> dict[str, Any]:
        """Everything resolved that decided a run with ``options``."""
        gpu = self.sizing.inputs.gpu.name if self.sizing.inputs.gpu else None
        return run_configuration("replay", options, self.sizing, gpu, self.config, self.step_time.describe())


def check_refusals(options: ReplayOptions, recorder: Recorder) -> None:
    """UserError: with --strict, a request that the engine rejected after it had accepted it."""
    if options.strict and recorder.first_refused:
        reason, where = next(iter(recorder.first_refused.items()))
        _raise_refusal(where, reason)


def _raise_refusal(source: str, reason: str) -> None:
    raise UserError(f"{source}: {reason} (--strict)")
