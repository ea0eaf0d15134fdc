"""How long steps take on a device: made-up requests run through the real executor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from random import Random

from kvtwin.engine.block_keys import KeySpace, TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Admission, Step
from kvtwin.engine.request import Request
from kvtwin.gpu.executor import DeviceExecutor, SubmittedStep
from kvtwin.gpu.step_grid import PlannedSequence, PlannedStep, num_blocks_of


@dataclass(slots=True)
class StepMeasurement:
    """A step, and how long it took each time."""

    step: Step
    num_padded_sequences: int = 0
    durations_ns: list[int] = field(default_factory=list)


def measure_steps(
    executor: DeviceExecutor,
    config: EngineConfig,
    plans: Sequence[PlannedStep],
    *,
    vocab_size: int,
    num_visits: int,
    num_repeats: int,
    limit_s: float,
    on_visit: Callable[[], None] | None = None,
    seed: int = 0,
) -> list[StepMeasurement]:
    """Visit every step ``num_visits`` times, all others in between; what was measured of those that came to run.

    A visit is ``num_repeats`` runs, as many of them in flight as ``config`` has steps, and one before that does not
    count: it finds an idle device, cold caches and kernels to compile. No visit begins after ``limit_s`` seconds; the
    first round goes from short steps to long ones, so that some of all kinds are measured.

    Blocks are those of a pool long in use: in no order. The executor has to be recording (``records``), runs no other
    request, and is left so; what its cache held is lost.
    """
    bench = _Bench(executor, config, vocab_size, Random(seed))
    measurements = [StepMeasurement(bench.step(plan)) for plan in plans]
    order = _from_short_to_long(plans)
    ends_s = time.monotonic() + limit_s
    for _ in range(num_visits):
        for index in order:
            if time.monotonic() >= ends_s:
                break
            bench.visit(plans[index], measurements[index], num_repeats)
            if on_visit:
                on_visit()
        bench.random.shuffle(order)
    bench.leave()
    return [measurement for measurement in measurements if measurement.durations_ns]


def _from_short_to_long(plans: Sequence[PlannedStep]) -> list[int]:
    """Positions of ``plans``: those that only decode and the others by turns, each from little work to much."""

    def work(index: int) -> tuple[int, int]:
        plan = plans[index]
        return sum(one.num_tokens for one in plan), sum(one.context_tokens for one in plan)

    kinds: tuple[list[int], list[int]] = ([], [])
    for index in sorted(range(len(plans)), key=work):
        kinds[not all(one.is_decoding for one in plans[index])].append(index)
    return [index for pair in zip_longest(*kinds) for index in pair if index is not None]


class _Bench:
    def __init__(self, executor: DeviceExecutor, config: EngineConfig, vocab_size: int, random: Random) -> None:
        self.random = random
        self._executor = executor
        self._config = config
        self._keys = KeySpace(config.block_size)
        self._blocks = list(range(1, config.num_blocks))
        random.shuffle(self._blocks)
        self._token_ids = [random.randrange(vocab_size) for _ in range(config.max_model_len)]
        self._num_requests = 0
        self._seated: list[Request] = []
        self._num_executed = len(executor.executed)

    def step(self, plan: PlannedStep) -> Step:
        """A step of requests of its own, which have run before."""
        requests = [self._request(sequence) for sequence in plan]
        return Step(
            index=0,
            requests=requests,
            num_tokens=[sequence.num_tokens for sequence in plan],
            num_computed_tokens=[sequence.num_computed_tokens for sequence in plan],
            samples=[sequence.samples for sequence in plan],
            total_tokens=sum(sequence.num_tokens for sequence in plan),
        )

    def visit(self, plan: PlannedStep, measurement: StepMeasurement, num_repeats: int) -> None:
        """Give the step's requests blocks, run it, and take note of how long it took."""
        step = measurement.step
        first = replace(step, admitted=self._admissions(plan, step.requests), finished=self._seated)
        self._seated = step.requests
        durations_ns = []
        in_flight: deque[SubmittedStep] = deque()
        for repeat in range(1 + num_repeats):
            in_flight.append(self._executor.submit(step if repeat else first))
            if len(in_flight) == self._config.max_steps_in_flight:
                durations_ns.append(self._executor.collect(in_flight.popleft()).duration_ns)
        durations_ns += [self._executor.collect(ticket).duration_ns for ticket in in_flight]
        measurement.durations_ns += durations_ns[1:]
        measurement.num_padded_sequences = self._executor.executed[-1].num_padded_sequences
        del self._executor.executed[self._num_executed :]

    def leave(self) -> None:
        """Take the requests off the executor again."""
        self._executor.collect(self._executor.submit(Step(index=0, finished=self._seated)))
        self._seated = []
        del self._executor.executed[self._num_executed :]

    def _request(self, sequence: PlannedSequence) -> Request:
        num_prompt_tokens = sequence.context_tokens - sequence.is_decoding + (not sequence.samples)
        self._num_requests += 1
        tokens = self._token_ids[: sequence.context_tokens + 1]
        request = Request(str(self._num_requests), num_prompt_tokens, 1, TokenContent(self._keys, tokens))
        request.num_tokens += sequence.is_decoding
        return request

    def _admissions(self, plan: PlannedStep, requests: Sequence[Request]) -> list[Admission]:
        """The requests, each with blocks of its own from anywhere in the pool."""
        block_size, num_blocks = self._config.block_size, num_blocks_of(plan, self._config.block_size)
        start = self.random.randrange(len(self._blocks))
        blocks = iter((self._blocks[start:] + self._blocks[:start])[:num_blocks])
        admissions = []
        for request, sequence in zip(requests, plan, strict=True):
            table = [next(blocks) for _ in range(0, sequence.context_tokens, block_size)]
            admissions.append(Admission(request, sequence.num_computed_tokens, [table], resumed=False))
        return admissions
