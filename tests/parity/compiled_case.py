"""A parity case through the compiled loop, stopped after every decision and every output to write the same log."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvtwin.engine.compiled.loop import state as at
from kvtwin.engine.compiled.loop.run import IDLE, NEEDS_ROOM, RUNS, WAKES_LATER
from kvtwin.engine.executor import Admission, Step
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.sim.compiled_engine import CompiledEngine
from kvtwin.sim.compiled_settings import reasons_against
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.request_record import RequestRecord
from tests.parity.case import CaseRun, UnsupportedCaseError, engine_config
from tests.parity.oracle.connector_oracle import DEFAULT_CONFIG

_SPARE_ROWS = 4
"""With fewer rows left for steps the loop comes back before it schedules the next one."""


class LoopCore:
    """The compiled loop behind the methods of ``EngineCore``. A step with requests takes 2 ns, another one none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.in_flight: deque[Step] = deque()
        self.waiting: list[Request] = []
        self.record_of: dict[Request, RequestRecord] = {}
        config = scheduler.config
        costs = LinearStepTime({"step_ns": 2}).step_costs(config.max_running_requests, config.token_budget)
        self._recorder = Recorder(scheduler)
        self._engine = CompiledEngine(scheduler, self._recorder, costs)
        self._memory = self._engine._memory
        self._memory.resize("log", 4096)
        self._numbers = self._memory["numbers"]
        self._is_processed = False
        """Whether the loop ran the oldest step in the call in which it decided the newest: it took no time."""

    def has_work(self) -> bool:
        counts = (at.NUM_RUNNING, at.NUM_WAITING, at.NUM_FINISHED, at.NUM_IN_FLIGHT)
        return bool(self.scheduler.waiting) or any(self._numbers[count] for count in counts)

    def schedule_next(self) -> Step | None:
        for request in self.scheduler.waiting:
            self._recorder.arrive([request], self.record_of[request], 0)
        self._engine.take_arrivals(self.record_of, must_tell=False)
        numbers, engine = self._numbers, self._engine
        num_steps, num_in_flight = numbers[at.NUM_STEPS], numbers[at.NUM_IN_FLIGHT]
        flight = (numbers[at.OLDEST_IN_FLIGHT] + num_in_flight) % 2
        num_blocks = {row: engine._field(row, at.NUM_BLOCKS) for row in self._running_rows()}
        self._run(engine.now_ns, spare_rows=_SPARE_ROWS)
        num_scheduled = numbers[at.NUM_STEPS] - num_steps
        assert num_scheduled in (0, 1)
        self._is_processed = num_in_flight + num_scheduled > numbers[at.NUM_IN_FLIGHT]
        step = None
        if num_scheduled:
            step = self._step(flight, num_blocks)
            self.in_flight.append(step)
        self._tell()
        return step

    def must_collect(self) -> bool:
        return self._is_processed or self._numbers[at.PHASE] == RUNS

    def process(self, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> Step:
        step = self.in_flight.popleft()
        if not self._is_processed:
            self._run(self._engine.wake_ns, spare_rows=0)
        self._tell()
        return step

    def _run(self, now_ns: int, *, spare_rows: int) -> None:
        numbers = self._numbers
        numbers[at.STEP_ROWS] = self._memory.num_rows("step_rows") - spare_rows
        numbers[at.RUN_ROWS] = numbers[at.LATENCY_ROWS] = numbers[at.SECOND_ROWS] = 0
        why = self._engine.run(now_ns, now_ns)
        assert why in (WAKES_LATER, IDLE, NEEDS_ROOM), why

    def _step(self, flight: int, num_blocks: dict[int, int]) -> Step:
        """The step in row ``flight``, as ``Scheduler.schedule`` would have returned it."""
        step, requests = Step(self._numbers[at.NUM_STEPS]), self._engine._requests
        width = at.COLUMNS["log"]
        log = self._memory["log"]
        admitted = set()
        for first in range(0, width * self._numbers[at.LOG_ROWS], width):
            row = log[first + at.LOG_REQUEST]
            request = requests[row]
            assert request is not None
            if log[first + at.LOG_KIND] == at.LOG_PREEMPTED:
                step.preempted.append(request)
            elif log[first + at.LOG_KIND] == at.LOG_ADMITTED:
                admitted.add(row)
                resumed = bool(log[first + at.LOG_RESUMED])
                step.admitted.append(Admission(request, log[first + at.LOG_HIT_TOKENS], [self._table(row)], resumed))
        width = at.COLUMNS["batches"]
        first = flight * self.scheduler.config.max_running_requests * width
        size = self._memory["flights"][flight * at.COLUMNS["flights"] + at.BATCH_SIZE]
        for start in range(first, first + size * width, width):
            row, num_tokens, samples = self._memory["batches"][start : start + width]
            request = requests[row]
            assert request is not None
            step.requests.append(request)
            step.num_tokens.append(num_tokens)
            step.samples.append(bool(samples))
            step.total_tokens += num_tokens
            if row not in admitted and len(self._table(row)) > num_blocks[row]:
                step.new_blocks.append((request, [self._table(row)[num_blocks[row] :]]))
        return step

    def _tell(self) -> None:
        """Let requests and scheduler be as they would be without the loop."""
        self._engine.tell([], lambda now_ns: None, lambda until_ns: sys.maxsize)
        for row, request in enumerate(self._engine._requests):
            if request is not None:
                fields = self._engine._row(row)
                request.num_tokens = fields[at.NUM_TOKENS]
                request.num_computed_tokens = fields[at.NUM_COMPUTED]
                request.block_keys = self._engine._keys(fields, fields[at.NUM_KEYS])
                request.block_tables = [self._table(row)]
        self.scheduler.running = [self._request(row) for row in self._running_rows()]
        self.waiting = []
        row = self._numbers[at.FIRST_WAITING]
        while row != at.NOBODY:
            self.waiting.append(self._request(row))
            row = self._engine._field(row, at.NEXT_WAITING)

    def _request(self, row: int) -> Request:
        request = self._engine._requests[row]
        assert request is not None
        return request

    def _running_rows(self) -> list[int]:
        return self._memory["running"][: self._numbers[at.NUM_RUNNING]].tolist()

    def _table(self, row: int) -> list[int]:
        first, count = self._engine._field(row, at.FIRST_BLOCK), self._engine._field(row, at.NUM_BLOCKS)
        return self._memory["tables"][first : first + count].tolist()


def why_plain(case: dict[str, Any], lines: list[dict[str, Any]]) -> list[str]:
    """What of a case only the plain scheduler knows."""
    case = DEFAULT_CONFIG | case | {"kv_events": False}
    reasons = {
        "a KV connector": bool(case["connector"]),
        "ranks that prefill in turns": case["common_prefill_interval"] > 1,
        "one arrival time at several steps": case["policy"] == "priority" and _arrives_again(lines),
    }
    return [
        *reasons_against(engine_config(case, num_loras=0)),
        *(reason for reason, holds in reasons.items() if holds),
        *sorted({line.get("op", "add") for line in lines} - {"add"}),
    ]


def _arrives_again(lines: list[dict[str, Any]]) -> bool:
    """Whether a request has the arrival time of one that came at another step, which in a simulation none has."""
    steps: dict[float, set[int]] = {}
    for line in lines:
        if "arrival_time" in line:
            steps.setdefault(line["arrival_time"], set()).add(line.get("arrival_step", 0))
    return any(len(numbers) > 1 for numbers in steps.values())


class CompiledRun(CaseRun):
    """A case through the compiled loop. UnsupportedCaseError: the loop leaves it to the plain scheduler."""

    def __init__(self, case: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        if reasons := why_plain(case, lines):
            raise UnsupportedCaseError(f"the plain scheduler: {', '.join(reasons)}")
        super().__init__(case | {"kv_events": False}, lines)
        self.core = LoopCore(self.scheduler)
        arrivals = {super(CompiledRun, self)._make_request(*event).arrival_ns for event in self.events}
        self._places = {arrival: place for place, arrival in enumerate(sorted(arrivals))}
        """Of each arrival time, as vLLM compares them: 64 bits do not hold them."""

    def _make_request(self, index: int, line: dict[str, Any]) -> Request:
        """With all that it will say: the loop must know where it ends."""
        request = super()._make_request(index, line)
        outputs = [self.sampler._token(request.request_id, number) for number in range(request.max_tokens)]
        ends = request.stop_token_ids | {request.eos_token_id}
        length = next((number for number, token in enumerate(outputs, 1) if token in ends), None)
        request.eos_token_id = None if length is None else outputs[length - 1]
        if not self.scheduler.config.enable_prefix_caching:
            request.content.append(outputs)  # else the loop does, for their keys
        request.arrival_ns = self._places[request.arrival_ns]
        self.core.record_of[request] = RequestRecord(
            request_id=request.request_id,
            arrival_ns=0,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=length or len(outputs),
            output_token_ids=outputs,
        )
        return request

    def _log_state(self, record: dict[str, Any]) -> None:
        super()._log_state(record)
        record["waiting"] = [request.request_id for request in self.core.waiting]


def run_compiled_case(case: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """``run_case``, by the compiled loop; without KV events, which nobody who wants them gets from it."""
    return CompiledRun(case, lines).run()
