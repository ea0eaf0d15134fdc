"""The compiled loop in the place of scheduler, core and executor of a simulated server."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kvtwin.engine.compiled.loop import ahead as loop_ahead
from kvtwin.engine.compiled.loop import run as loop_run
from kvtwin.engine.compiled.loop import state as at
from kvtwin.engine.compiled.loop import take as loop_take
from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.engine.executor import Admission, Step
from kvtwin.engine.request import FinishReason, Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.sim.compiled_settings import make_memory
from kvtwin.sim.counting import add_counts
from kvtwin.sim.recording import Recorder
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.step_costs import StepCosts
from kvtwin.workloads.request_record import RequestRecord

_COUNTS = {
    "num_steps": at.NUM_STEPS,
    "num_scheduled_tokens": at.NUM_SCHEDULED_TOKENS,
    "num_recomputed_tokens": at.NUM_RECOMPUTED_TOKENS,
    "num_preemptions": at.NUM_PREEMPTED,
    "phantom_hit_tokens": at.NUM_PHANTOM_HIT_TOKENS,
}
"""Statistics of the engine, and where the loop counts them."""

_REASONS = {at.STOP: FinishReason.STOP, at.LENGTH: FinishReason.LENGTH, at.CAPACITY: FinishReason.CAPACITY}

KeyRuns: TypeAlias = Sequence[int]
"""Leading keys of blocks: the first one, the step to the next one, how many there are, and so on."""

_NOTHING = Step(-1)
"""No step."""

_MOST_ROWS = 65_536
"""Rows of steps that are kept before the recorder takes them over."""


class CompiledEngine:
    """Takes over who waits in a scheduler's queue, and tells the recorder what the loop did with them.

    The scheduler keeps its statistics, its block pool, whose memory is the loop's too, and the requests that live.
    """

    def __init__(
        self, scheduler: Scheduler, recorder: Recorder, costs: StepCosts, *, tells_first_tokens: bool = False
    ) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._memory = make_memory(scheduler, costs)
        self._listeners = scheduler.kv_cache.pool.listeners
        self._memory["settings"][at.TELLS_KEYS] = bool(self._listeners)
        self._memory["settings"][at.TELLS_FIRST_TOKENS] = tells_first_tokens
        self._numbers = self._memory["numbers"]
        self._block_size = scheduler.config.group_specs[0].block_size
        self._caches = scheduler.config.enable_prefix_caching
        self._max_steps_in_flight = scheduler.config.max_steps_in_flight
        self._code = machine_code()
        self._requests: list[Request | None] = [None] * self._memory.num_rows("requests")
        """Of each row, the request that it stands for."""
        self._free_rows = list(range(len(self._requests)))[::-1]
        self._leaving: list[int] = []
        """Rows of ended requests; a step in flight may still name them."""
        self._arena_end = 0
        self._num_taken = 0
        self._num_processed = 0
        self._num_questions = 0
        self._loras: dict[str, int] = {}
        self._counted = dict.fromkeys(_COUNTS, 0)

    @property
    def now_ns(self) -> int:
        """How far the loop has come."""
        return int(self._numbers[at.NOW_NS])

    @property
    def wake_ns(self) -> int:
        """When it goes on, if it waits for the end of a step."""
        return int(self._numbers[at.WAKE_NS])

    @property
    def num_requests(self) -> tuple[int, int]:
        """Requests that wait, and that run."""
        return int(self._numbers[at.NUM_WAITING]), int(self._numbers[at.NUM_RUNNING])

    def hold(self, until_ns: int, *, may_decide: bool) -> None:
        """Let no step be decided up to ``until_ns``, but for the next one if ``may_decide``."""
        self._numbers[at.HELD_NS] = until_ns
        self._numbers[at.MAY_DECIDE] = may_decide

    # ---------------------------------------------------------------- requests arrive

    def take_arrivals(self, record_of: Mapping[Request, RequestRecord], *, must_tell: bool) -> None:
        """Take over the scheduler's queue; ``must_tell``: somebody waits for the end of every request."""
        waiting = self._scheduler.waiting
        while waiting:
            request = waiting.pop()
            record = record_of[request]
            self._take(request, record, must_tell=must_tell or record.session is not None)

    def expect(self, request: Request, record: RequestRecord) -> KeyRuns:
        """Take a request that arrives at ``record.arrival_ns``, behind all others; return the keys of its blocks."""
        numbers = self._numbers
        if numbers[at.NEXT_ARRIVAL] == numbers[at.NUM_ARRIVALS]:
            numbers[at.NEXT_ARRIVAL] = numbers[at.NUM_ARRIVALS] = 0
        if numbers[at.NUM_ARRIVALS] == self._memory.num_rows("arrivals"):
            self._memory.resize("arrivals", 2 * numbers[at.NUM_ARRIVALS])
        return self._take(request, record, must_tell=False, arrives_ns=record.arrival_ns)

    @property
    def next_arrival_ns(self) -> int | None:
        """When the next expected request arrives; None without one."""
        place = self._numbers[at.NEXT_ARRIVAL]
        if place == self._numbers[at.NUM_ARRIVALS]:
            return None
        return int(self._memory["arrivals"][place * at.COLUMNS["arrivals"] + at.ARRIVES_NS])

    def take_back_expected(self) -> None:
        """Let the scheduler's queue have those that have not arrived: the loop has ended."""
        first, end = self._numbers[at.NEXT_ARRIVAL], self._numbers[at.NUM_ARRIVALS]
        for row in self._memory["arrivals"][2 * first + at.ARRIVING : 2 * end : 2]:
            request = self._requests[row]
            assert request is not None
            self._scheduler.waiting.append(request)
            self._requests[row] = None
        self._numbers[at.NEXT_ARRIVAL] = end

    def ask(self, questions: array[int], runs: array[int]) -> None:
        """Answer ``questions`` on the way; ``runs`` are the keys that they name (see ``LoopArrays``)."""
        self._memory.share("questions", questions)
        self._memory.share("question_runs", runs)
        self._num_questions = len(questions) // at.COLUMNS["questions"]
        self._memory.resize("answers", max(self._num_questions, self._memory.num_rows("answers")))
        self._numbers[at.NEXT_QUESTION], self._numbers[at.NUM_QUESTIONS] = 0, self._num_questions

    def answers(self) -> list[int]:
        """Leading tokens that were cached, of each question; all their instants have passed."""
        if self._code:
            self._code.answer(self._memory.table().buffer_info()[0], at.LAST_NS)
        else:
            loop_ahead.answer(self._memory.views(), at.LAST_NS)
        block_tokens = self._block_size if self._caches else 0
        return [block_tokens * blocks for blocks in self._memory["answers"][: self._num_questions]]

    def _take(self, request: Request, record: RequestRecord, *, must_tell: bool, arrives_ns: int = at.NEVER) -> KeyRuns:
        stop_tokens = 0 if request.eos_token_id is None else request.num_prompt_tokens + record.output_tokens
        most_tokens = min(request.max_total_tokens, stop_tokens or request.max_total_tokens)
        room = -(-(most_tokens + self._max_steps_in_flight) // self._block_size) + 1
        lora = self._loras.setdefault(request.lora.name, len(self._loras) + 1) if request.lora else 0
        self._num_taken += 1
        given = array(
            "q",
            (
                request.num_prompt_tokens,
                request.max_total_tokens,
                stop_tokens,
                request.priority,
                request.arrival_ns,
                self._num_taken,
                lora,
                request.is_warm_up,
                must_tell,
                len(request.block_keys) if self._caches else 0,
            ),
        )
        runs: KeyRuns = ()
        if self._caches:
            if request.parent is None and record.output_token_ids:
                request.content.append(record.output_token_ids)  # known beforehand here
            runs = request.content.shared_key_runs(request.block_keys, room)
            given.extend(runs)
        place = self._new_place(room)
        row = self._new_row(request)
        if lora >= self._memory.num_rows("lora_holders"):
            self._memory.resize("lora_holders", 2 * lora)
        private_key = self._scheduler.keys.private_keys(room)
        if self._code:
            address, count = given.buffer_info()
            table = self._memory.table()
            self._code.take(table.buffer_info()[0], row, address, count, place, room, private_key, arrives_ns)
        else:
            loop_take.take(self._memory.views(), row, given, place, room, private_key, arrives_ns)
        return runs

    def _new_row(self, request: Request) -> int:
        if not self._free_rows:
            self._free_left_rows()
        if not self._free_rows:
            count = len(self._requests)
            for name in ("requests", "passed_over", "ended", "first_tokens"):
                self._memory.resize(name, 2 * count)
            self._requests += [None] * count
            self._free_rows = list(range(count, 2 * count))[::-1]
        row = self._free_rows.pop()
        self._requests[row] = request
        return row

    def _free_left_rows(self) -> None:
        """Rows of ended requests that no step in flight names any more are free."""
        still_named = []
        for row in self._leaving:
            if self._field(row, at.NUM_STEPS_IN_FLIGHT):
                still_named.append(row)
            else:
                self._free_rows.append(row)
        self._leaving = still_named

    def _new_place(self, room: int) -> int:
        """Where ``room`` blocks fit in the arenas, which are cleared of what ended if they are full."""
        if self._arena_end + room > self._memory.num_rows("keys"):
            self._move_together(room)
        place = self._arena_end
        self._arena_end += room
        return place

    def _move_together(self, room: int) -> None:
        memory, rows = self._memory, self._memory["requests"]
        live = [row for row, request in enumerate(self._requests) if request is not None]
        live = [row for row in live if self._field(row, at.ROOM_BLOCKS)]
        num_live_blocks = sum(self._field(row, at.ROOM_BLOCKS) for row in live)
        length = memory.num_rows("keys")
        while length < 2 * (num_live_blocks + room):
            length *= 2
        old = {name: memory[name] for name in ("keys", "tables")}
        for name in old:
            memory.resize(name, 0)
            memory.resize(name, length)
        self._arena_end = 0
        for row in live:
            start, count = self._field(row, at.FIRST_BLOCK), self._field(row, at.ROOM_BLOCKS)
            for name, numbers in old.items():
                memory[name][self._arena_end : self._arena_end + count] = numbers[start : start + count]
            rows[row * at.NUM_FIELDS + at.FIRST_BLOCK] = self._arena_end
            self._arena_end += count

    def _row(self, row: int) -> array[int]:
        return self._memory["requests"][row * at.NUM_FIELDS : (row + 1) * at.NUM_FIELDS]

    def _field(self, row: int, field: int) -> int:
        return int(self._memory["requests"][row * at.NUM_FIELDS + field])

    # ---------------------------------------------------------------- the loop

    def run(self, now_ns: int, until_ns: int | None) -> int:
        """Go on from ``now_ns`` until something outside may happen; return why (:mod:`...compiled.loop.run`)."""
        until_ns = at.LAST_NS if until_ns is None else until_ns
        if self._code:
            return self._code.run(self._memory.table().buffer_info()[0], now_ns, until_ns)
        return int(loop_run.run(self._memory.views(), now_ns, until_ns))

    def make_room(self) -> None:
        """Let the recorder take over the tables, and make the log as long as an iteration may need."""
        self.flush()
        num_live = self._numbers[at.NUM_RUNNING] + self._numbers[at.NUM_WAITING]
        length = self._memory.num_rows("log")
        while length < 4 * num_live + 64:
            length *= 2
        self._memory.resize("log", length)
        if self._listeners:
            length = 2 * int(loop_run.most_key_changes(self._memory.views()))
            self._memory.resize("key_changes", max(length, self._memory.num_rows("key_changes")))

    # ---------------------------------------------------------------- what is recorded

    def tell_key_changes(self) -> None:
        """Tell the listeners of the pool which keys blocks got and lost."""
        count = self._numbers[at.KEY_ROWS]
        if not count:
            return
        self._numbers[at.KEY_ROWS] = 0
        changes = self._memory["key_changes"][: count * at.COLUMNS["key_changes"]]
        blocks, keys = changes[:: at.COLUMNS["key_changes"]], changes[1 :: at.COLUMNS["key_changes"]]
        place = 0
        while place < count:
            first = place
            while place < count and blocks[place] > 0:
                place += 1
            for listener in self._listeners:
                if first < place:
                    listener.registered(blocks[first:place], keys[first:place], None)
                else:
                    listener.evicted(-blocks[place], keys[place])
            place += first == place

    def take_processed(self) -> bool:
        """Whether outputs of steps were delivered since the last call."""
        before, self._num_processed = self._num_processed, self._numbers[at.NUM_STEPS] - self._numbers[at.NUM_IN_FLIGHT]
        return bool(self._num_processed > before)

    def take_first_tokens(self) -> list[Request]:
        """The requests whose first token was delivered since the last call."""
        count = self._numbers[at.NUM_FIRST_TOKENS]
        self._numbers[at.NUM_FIRST_TOKENS] = 0
        found = []
        for row in self._memory["first_tokens"][:count]:
            request = self._requests[row]
            assert request is not None
            request.num_tokens = self._field(row, at.NUM_TOKENS)
            found.append(request)
        return found

    def tell(
        self,
        observers: Sequence[ServerObserver],
        collect_ended: Callable[[int], object],
        tell_arrivals: Callable[[int], int],
    ) -> None:
        """Tell recorder and observers what became of requests; ``collect_ended`` is called for all of an instant.

        ``tell_arrivals`` tells of expected requests up to an instant, before anything else then, and when the next one
        comes.
        """
        count = self._numbers[at.LOG_ROWS]
        if not count:
            return
        self._numbers[at.LOG_ROWS] = 0
        width = at.COLUMNS["log"]
        log = self._memory["log"][: count * width].tolist()
        step, step_ns, arrives_ns = _NOTHING, 0, 0
        for first in range(0, len(log), width):
            kind, now_ns, row, num_tokens, num_hit_tokens, was_preempted, index = log[first : first + width]
            if now_ns >= arrives_ns:
                arrives_ns = tell_arrivals(now_ns)
            request = self._requests[row]
            assert request is not None
            if step is not _NOTHING and (kind == at.LOG_ENDED or step.index != index):
                self._tell_step(step, step_ns, observers)
                step = _NOTHING
            if kind == at.LOG_ENDED:
                self._end(request, row)
                # Who waits for one that ends may change what is counted: all of an instant have ended before he hears.
                if log[first + width : first + width + 2] != [kind, now_ns]:
                    collect_ended(now_ns)
                continue
            if step is _NOTHING:
                step, step_ns = Step(index), now_ns
            if kind == at.LOG_PREEMPTED:
                request.num_highest_computed_tokens = num_tokens
                step.preempted.append(request)
            else:
                request.num_tokens = num_tokens
                if request.session is not None and self._caches:
                    request.block_keys = self._keys(self._row(row), num_tokens // self._block_size)
                step.admitted.append(Admission(request, num_hit_tokens, [], bool(was_preempted)))
        if step is not _NOTHING:
            self._tell_step(step, step_ns, observers)

    def _tell_step(self, step: Step, now_ns: int, observers: Sequence[ServerObserver]) -> None:
        """What ``Scheduler.schedule`` and ``ServerSimulation`` do with who is admitted and who is preempted."""
        if self._caches:
            self._scheduler.statistics.record_admissions(step.admitted, asks_host=False)
        self._recorder.admit(step.admitted, now_ns)
        for observer in observers:
            observer.scheduled(step, now_ns)

    def _end(self, request: Request, row: int) -> None:
        """``Scheduler._finish`` but for the blocks, which are free already."""
        fields = self._row(row)
        request.num_tokens = fields[at.NUM_TOKENS]
        request.num_highest_computed_tokens = fields[at.HIGHEST_COMPUTED]
        request.num_preemptions = fields[at.NUM_PREEMPTIONS]
        if request.session is not None and self._caches:
            request.block_keys = self._keys(fields, fields[at.NUM_KEYS])
        if fields[at.FIRST_TOKEN_NS] != at.NEVER:
            self._recorder.deliver_first(request, fields[at.FIRST_TOKEN_NS])
        code = fields[at.REASON]
        message = ""
        if code == at.STUCK:
            reason, message = self._scheduler.why_stuck(request)
        else:
            reason = _REASONS[code]
            if reason is FinishReason.CAPACITY:
                message = self._scheduler.kv_cache.why_never_fits(request, request.num_tokens) or ""
        del self._scheduler.live[request.request_id]
        self._requests[row] = None
        self._leaving.append(row)
        self._scheduler.end(request, reason, message)

    def _keys(self, fields: array[int], count: int) -> list[int]:
        first = fields[at.FIRST_BLOCK]
        return self._memory["keys"][first : first + count].tolist()

    def flush(self) -> None:
        """Let the recorder and the statistics take over the rows and the counts so far."""
        steps = self._recorder.steps
        rows = self._take_rows("step_rows", at.STEP_ROWS)
        for column, name in enumerate(at.STEP_COLUMNS):
            getattr(steps, name).extend(rows[column :: len(at.STEP_COLUMNS)])
        nothing = array("q", bytes(8 * (len(rows) // len(at.STEP_COLUMNS))))
        for name in ("unused_slots", "saved_blocks", "loaded_blocks", "pinned_blocks"):
            getattr(steps, name).extend(nothing)
        rows = self._take_rows("run_rows", at.RUN_ROWS)
        steps.start_ns.extend(rows[::2])
        steps.end_ns.extend(rows[1::2])
        for name, number, counter in (
            ("latencies", at.LATENCY_ROWS, self._recorder.inter_token_latencies_ns),
            ("seconds", at.SECOND_ROWS, self._recorder.output_tokens_per_s),
        ):
            _count(counter, self._take_rows(name, number))
        statistics = self._scheduler.statistics
        for name, number in _COUNTS.items():
            counted = self._numbers[number]
            setattr(statistics, name, getattr(statistics, name) + counted - self._counted[name])
            self._counted[name] = counted

    def _take_rows(self, name: str, number: int) -> array[int]:
        count = self._numbers[number]
        self._numbers[number] = 0
        if count and self._memory.num_rows(name) < _MOST_ROWS:
            old = self._memory[name]
            self._memory.resize(name, _MOST_ROWS)
            return old[: count * at.COLUMNS[name]]
        return self._memory[name][: count * at.COLUMNS[name]]

    def hand_back(self) -> None:
        """Give the scheduler its requests back, as far as they have not ended: the run is over."""
        self.flush()
        running = self._memory["running"][: self._numbers[at.NUM_RUNNING]]
        self._scheduler.running = [request for row in running if (request := self._requests[row])]
        row = self._numbers[at.FIRST_WAITING]
        while row != at.NOBODY:
            request = self._requests[row]
            assert request is not None
            self._scheduler.waiting.append(request)
            row = self._field(row, at.NEXT_WAITING)


def _count(counter: Counter[int], rows: array[int]) -> None:
    """Add ``rows``, values and how often they came, most of them new."""
    import numpy as np

    if not rows:
        return
    values, times = np.asarray(rows[::2]), np.asarray(rows[1::2])
    order = np.argsort(values, kind="stable")
    values, times = values[order], times[order]
    firsts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    add_counts(counter, dict(zip(values[firsts].tolist(), np.add.reduceat(times, firsts).tolist(), strict=True)))
