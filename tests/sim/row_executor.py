"""An executor that keeps its block tables in an array of its own, like a device, and leaves evidence of each step.

It computes nothing: durations and output tokens are drawn.
"""

import random

import numpy as np

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.engine.executor import Executor, Step, StepResult
from kvtwin.engine.request import Request

GARBAGE = -7
"""What a row holds where nothing was written."""

FAULTS = (
    "replaced entries are not updated",
    "forks write their token",
    "a row keeps what it held before it was preempted",
    "new blocks go to the front",
    "rows of two requests are mixed up",
    "slots are those of the token before",
    "the step's order is turned round",
    "a token is delivered and not noted",
)


class RowExecutor(Executor[ExecutedStep]):
    """``fault`` names something that it does wrong, from ``FAULTS``."""

    def __init__(self, config: EngineConfig, seed: int, *, num_tokens: int = 2, eos: int | None = None, fault=None):
        self.executed: list[ExecutedStep] = []
        self._block_size = config.block_size
        self._width = -(-config.max_model_len // config.block_size) + 1
        self._rows = np.full((config.max_running_requests, self._width), GARBAGE, np.int32)
        self._lengths = np.zeros(config.max_running_requests, np.int32)
        self._seats: dict[Request, int] = {}
        self._free_seats = list(range(config.max_running_requests))
        self._rng = random.Random(seed)
        self._num_tokens, self._eos, self._fault = num_tokens, eos, fault

    def submit(self, step: Step) -> ExecutedStep:
        for request in (*step.preempted, *step.finished):
            if request in self._seats:
                self._free_seats.append(self._seats.pop(request))
        for admission in step.admitted:
            seat = self._seats[admission.request] = self._free_seats.pop()
            if self._fault != "a row keeps what it held before it was preempted" or not admission.resumed:
                self._rows[seat] = GARBAGE
                self._lengths[seat] = 0
            self._append(seat, admission.block_tables[0])
        for request, (blocks,) in step.new_blocks:
            self._append(self._seats[request], blocks)
        if self._fault != "replaced entries are not updated":
            for request, _, position, block in step.replaced_blocks:
                self._rows[self._seats[request], position] = block
        return self._execute(step)

    def collect(self, ticket: ExecutedStep) -> StepResult:
        tokens = list(ticket.tokens)
        self.executed.append(ticket)
        if self._fault == "the step's order is turned round":
            for column in (ticket.request_ids, ticket.block_tables, ticket.slots, ticket.tokens):
                column.reverse()
        if self._fault == "a token is delivered and not noted" and any(tokens):
            tokens = [[token + 1 for token in token_ids] for token_ids in tokens]
        return StepResult(ticket.duration_ns, tokens)

    def _append(self, seat: int, blocks: list[int]) -> None:
        length = self._lengths[seat]
        if self._fault == "new blocks go to the front":
            length = 0
        fitting = blocks[: max(0, self._width - length)]  # more come only behind what a fault has left there
        self._rows[seat, length : length + len(fitting)] = fitting
        self._lengths[seat] += len(blocks)

    def _execute(self, step: Step) -> ExecutedStep:
        seats = [self._seats[request] for request in step.requests]
        if self._fault == "rows of two requests are mixed up":
            seats.reverse()
        forks = {admission.request for admission in step.admitted if admission.is_fork}
        tables, slots = [], []
        for request, seat, start, count in zip(
            step.requests, seats, step.num_computed_tokens, step.num_tokens, strict=True
        ):
            positions = np.arange(start, start + count)
            row, size = self._rows[seat], self._block_size
            tables.append(row[: -(-(start + count) // size)].tolist())
            shift = self._fault == "slots are those of the token before"
            written = row[positions // size] * size + positions % size - shift
            if request in forks and self._fault != "forks write their token":
                written[:] = -1
            slots.append(written.tolist())
        return ExecutedStep(
            index=step.index,
            request_ids=[request.request_id for request in step.requests],
            block_tables=tables,
            slots=slots,
            tokens=[[self._token()] if samples else [] for samples in step.samples],
            duration_ns=self._rng.randint(1, 400) if step.requests else 0,
            host_ns=self._rng.randint(1, 9),
            num_padded_sequences=len(step.requests),
        )

    def _token(self) -> int:
        if self._eos is not None and self._rng.random() < 0.1:
            return self._eos
        return self._rng.randrange(self._num_tokens)
