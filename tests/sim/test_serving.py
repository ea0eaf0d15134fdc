"""The simulated server: clients, clock, engine loop and what is recorded of them."""

import gc
from collections import Counter
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.sim.recording import NEVER
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.growing_prompt import GrowingPrompt
from kvtwin.workloads.request_record import Predecessor, RequestRecord
from tests.parts import examples

both_loops = pytest.mark.parametrize("asynchronous", [False, True])


class FixedStepTime:
    """``step_ns`` per step, and ``token_ns`` for each token in it."""

    name = "fixed"

    def __init__(self, step_ns=100, token_ns=0):
        self.step_ns, self.token_ns = step_ns, token_ns

    def duration_ns(self, shape):
        assert shape.num_sequences
        return self.step_ns + self.token_ns * shape.total_tokens

    def describe(self):
        return {"step_ns": self.step_ns, "token_ns": self.token_ns}


def record(name, arrival_ns=0, prompt=16, output=1, **fields):
    return RequestRecord(
        request_id=str(name), arrival_ns=arrival_ns, prompt_tokens=prompt, output_tokens=output, **fields
    )


def simulation(
    *,
    usable=64,
    asynchronous=False,
    step_time=None,
    max_concurrency=None,
    ignore_eos=True,
    check=True,
    num_warm_up_requests=0,
    **config,
):
    settings = {"async_scheduling": asynchronous, "max_num_batched_tokens": 8192, "max_num_seqs": 128} | config
    settings["max_num_seqs"] = min(settings["max_num_seqs"], settings["max_num_batched_tokens"])
    return ServerSimulation(
        EngineConfig(num_blocks=usable + 1, **settings),
        SimulatedExecutor(step_time or FixedStepTime()),
        max_concurrency=max_concurrency,
        ignore_eos=ignore_eos,
        check=check,
        num_warm_up_requests=num_warm_up_requests,
    )


def serve(workload, **options):
    return simulation(**options).run(workload)


def rows(recorder):
    """Columns of the requests, by request id."""
    columns = vars(recorder.requests)
    return {
        request_id: {name: values[index] for name, values in columns.items()}
        for index, request_id in enumerate(recorder.requests.request_id)
    }


def column(recorder, name):
    """One column of the requests, by request id."""
    return {request_id: row[name] for request_id, row in rows(recorder).items()}


def at_server(recorder):
    """Most requests that were at the server at one time, an end at an instant counting before an arrival."""
    events = []
    for row in rows(recorder).values():
        events += [(row["arrival_ns"], 1, 1), (row["finish_ns"], 0, -1)]
    most = now = 0
    for _, _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


# ---------------------------------------------------------------- the clock


def test_time_does_not_drift():
    """S11: adding 0.1 ms again and again ends at the exact sum (vivarium-core PR 183, pathsim PR 249)."""
    recorder = serve(
        [record("a", output=5_000)],
        usable=2000,
        max_model_len=30_000,
        step_time=FixedStepTime(100_000),
        check=False,
    )
    assert recorder.end_ns == 5_000 * 100_000
    assert set(recorder.inter_token_latencies_ns) == {100_000}
    assert all(type(time) is int for time in recorder.steps.end_ns)


def test_a_year_of_nanoseconds():
    year = 365 * 86_400 * 10**9
    recorder = serve([record("a"), record("b", year + 1)])
    assert column(recorder, "finish_ns") == {"a": 100, "b": year + 101}
    assert recorder.end_ns == year + 101


@both_loops
@pytest.mark.parametrize("arrival_ns", [0, 5, 100])
def test_equal_arrival_times_keep_file_order(arrival_ns, asynchronous):
    names = ["b", "a", "10", "9", "2"]
    workload = [record("first", output=3), *(record(name, arrival_ns) for name in names)]
    recorder = serve(workload, asynchronous=asynchronous, max_num_seqs=2)
    started = sorted(column(recorder, "finish_ns").items(), key=lambda entry: entry[1])
    assert [name for name, _ in started if name != "first"] == names


@both_loops
def test_equal_arrival_times_and_priorities_keep_file_order(asynchronous):
    """A server stamps requests as they come in, so that later lines of a file are later arrivals."""
    names = ["b", "a", "10", "9", "2"]
    recorder = serve(
        [record(name) for name in names],
        asynchronous=asynchronous,
        scheduling_policy="priority",
        max_num_seqs=1,
    )
    assert recorder.requests.request_id == names


def test_an_arrival_at_the_end_of_a_step_is_in_the_next_step():
    recorder = serve([record("a", output=5), record("b", 100), record("c", 201), record("d", 300)])
    assert column(recorder, "first_scheduled_ns") == {"a": 0, "b": 100, "c": 300, "d": 300}
    assert list(recorder.steps.scheduled_ns)[:4] == [0, 100, 200, 300]


def test_an_arrival_while_two_steps_are_in_flight():
    """Asynchronously, the step that starts at 100 was scheduled at 0."""
    recorder = serve([record("a", output=5), record("b", 50), record("c", 100)], asynchronous=True)
    scheduled = column(recorder, "first_scheduled_ns")
    assert scheduled == {"a": 0, "b": 100, "c": 100}
    first_row = list(recorder.steps.scheduled_ns).index(100)
    assert recorder.steps.start_ns[first_row] == 200


def test_an_idle_server_starts_at_the_instant_of_an_arrival():
    recorder = serve([record("a", 7), record("b", 1_000_003), record("c", 1_000_003)])
    assert column(recorder, "first_token_ns") == {"a": 107, "b": 1_000_103, "c": 1_000_103}


@both_loops
def test_steps_without_duration(asynchronous):
    recorder = serve(
        [record(index, index // 3, output=4) for index in range(9)],
        asynchronous=asynchronous,
        step_time=FixedStepTime(0),
    )
    assert column(recorder, "finish_ns") == {str(index): index // 3 for index in range(9)}


# ---------------------------------------------------------------- any workload

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 400),  # gap
        st.integers(1, 40),  # prompt
        st.integers(0, 12),  # output
        st.integers(0, 3),  # which prefix
        st.integers(-1, 1),  # priority
    ),
    min_size=1,
    max_size=25,
)


def workload_of(drawn):
    arrival_ns, workload = 0, []
    for index, (gap, prompt, output, prefix, priority) in enumerate(drawn):
        arrival_ns += gap // 100 * 50
        tokens = [prefix] * prompt
        workload.append(record(index, arrival_ns, prompt, output, token_ids=tokens, priority=priority))
    return workload


@examples(60)
@given(
    drawn=RECORDS,
    asynchronous=st.booleans(),
    ignore_eos=st.booleans(),
    max_concurrency=st.sampled_from([None, 1, 2, 5]),
    block_size=st.sampled_from([1, 4, 16]),
    budget=st.sampled_from([3, 16, 8192]),
    usable_tokens=st.sampled_from([32, 48, 96]),
)
def test_what_is_recorded_of_any_workload(
    drawn, asynchronous, ignore_eos, max_concurrency, block_size, budget, usable_tokens
):
    workload = workload_of(drawn)
    options = {
        "usable": usable_tokens // block_size,
        "block_size": block_size,
        "asynchronous": asynchronous,
        "max_num_batched_tokens": budget,
        "max_model_len": 45,
        "max_concurrency": max_concurrency,
        "ignore_eos": ignore_eos,
        "step_time": FixedStepTime(7, 3),
    }
    recorder = serve(workload, **options)
    steps, statistics = recorder.steps, recorder.scheduler.statistics

    assert recorder.unfinished == []
    assert recorder.refused == Counter("zero output" for each in workload if each.output_tokens == 0)
    assert len(recorder.requests.request_id) + recorder.refused.total() == len(workload)
    by_id = {each.request_id: each for each in workload}
    for name, row in rows(recorder).items():
        sent = by_id[name]
        assert row["arrival_ns"] >= sent.arrival_ns
        if max_concurrency is None:
            assert row["arrival_ns"] == sent.arrival_ns
        if row["finish_reason"] in ("rejected", "capacity"):
            assert "blocks, pool" in row["finish_message"] or "cannot be computed" in row["finish_message"]
            continue
        assert row["output_tokens"] == min(sent.output_tokens, 45 - sent.prompt_tokens)
        times = [row[name] for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns")]
        assert times == sorted(times)
        assert 0 <= row["hit_tokens"] < sent.prompt_tokens
        assert row["hit_tokens"] % block_size == 0

    ended_before = 0
    for scheduled_ns, start_ns, end_ns in zip(steps.scheduled_ns, steps.start_ns, steps.end_ns, strict=True):
        assert scheduled_ns <= start_ns <= end_ns
        assert start_ns >= ended_before, "steps overlap"
        ended_before = end_ns
    assert list(steps.scheduled_ns) == sorted(steps.scheduled_ns)
    assert recorder.end_ns >= ended_before
    assert max(steps.tokens, default=0) <= budget
    for tokens, sequences, start_ns, end_ns in zip(
        steps.tokens, steps.sequences, steps.start_ns, steps.end_ns, strict=True
    ):
        assert end_ns - start_ns == (7 + 3 * tokens if sequences else 0)
        assert tokens >= sequences
    assert len(steps.tokens) == statistics.num_steps
    assert sum(steps.tokens) == statistics.num_scheduled_tokens
    assert sum(steps.preempted) == statistics.num_preemptions == sum(recorder.requests.preemptions)
    counts = statistics.prefix_cache
    assert sum(steps.hit_tokens) == counts.hits + counts.preempted_hits
    assert sum(steps.admitted) == counts.requests + counts.preempted_requests
    assert sum(recorder.requests.hit_tokens) == counts.hits
    assert sum(recorder.requests.resumed_hit_tokens) == counts.preempted_hits
    assert counts.hits <= counts.queries
    assert min(steps.free_blocks, default=0) >= 0
    outputs = [row["output_tokens"] for row in rows(recorder).values()]
    assert recorder.inter_token_latencies_ns.total() == sum(max(0, length - 1) for length in outputs)
    if max_concurrency is not None:
        assert at_server(recorder) <= max_concurrency
        assert recorder.peak_requests <= max_concurrency

    again = serve(workload_of(drawn), **options)
    assert (again.requests, again.steps, again.end_ns) == (recorder.requests, recorder.steps, recorder.end_ns)


# ---------------------------------------------------------------- clients


@both_loops
@pytest.mark.parametrize("max_concurrency", [1, 2, 3, 7, 100])
def test_no_more_than_max_concurrency_are_at_the_server(max_concurrency, asynchronous):
    workload = [record(index, 10 * (index // 4), output=1 + index % 5) for index in range(40)]
    recorder = serve(workload, asynchronous=asynchronous, max_concurrency=max_concurrency)
    assert len(recorder.requests.request_id) == 40
    assert at_server(recorder) == recorder.peak_requests <= max_concurrency
    if max_concurrency <= 7:
        assert recorder.peak_requests == max_concurrency
    arrivals = column(recorder, "arrival_ns")
    assert sorted(arrivals.values()) == [arrivals[str(index)] for index in range(40)], "sent in file order"


@both_loops
def test_one_at_a_time(asynchronous):
    """Each request is sent at the instant at which the one before it ends."""
    recorder = serve([record(index, output=3) for index in range(6)], asynchronous=asynchronous, max_concurrency=1)
    arrivals, ends = (column(recorder, name) for name in ("arrival_ns", "finish_ns"))
    assert recorder.requests.request_id == [str(index) for index in range(6)]
    for index in range(1, 6):
        assert arrivals[str(index)] == ends[str(index - 1)]
    assert recorder.end_ns == 6 * 300


def test_a_request_sent_when_another_ends_is_in_the_next_step():
    recorder = serve([record("a", output=3), record("b"), record("c", output=9)], max_concurrency=2)
    assert column(recorder, "first_scheduled_ns") == {"a": 0, "b": 0, "c": 100}


def think(name, session, think_time_ns, arrival_ns=0, **fields):
    return record(name, arrival_ns, session=session, think_time_ns=think_time_ns, **fields)


@both_loops
def test_later_turns_come_a_think_time_after_the_turn_before_completed(asynchronous):
    workload = [
        record("a1", session="a", output=3),
        record("b1", 10, session="b", output=2),
        think("a2", "a", 50, 20, output=2),
        think("b2", "b", 1_000, 30),
        think("a3", "a", 7, 40),
    ]
    recorder = serve(workload, asynchronous=asynchronous)
    arrivals, ends = (column(recorder, name) for name in ("arrival_ns", "finish_ns"))
    assert arrivals["a2"] == ends["a1"] + 50
    assert arrivals["a3"] == ends["a2"] + 7
    assert arrivals["b2"] == ends["b1"] + 1_000


def test_a_turn_never_comes_before_its_own_arrival():
    recorder = serve([record("1", session="s"), think("2", "s", 10, 5_000), record("3", 9_000)])
    assert column(recorder, "arrival_ns") == {"1": 0, "2": 5_000, "3": 9_000}


def test_a_later_turn_waits_for_all_turns_before_it():
    """Two requests of a session may run at once; the turn behind them waits for both."""
    workload = [
        record("short", session="s"),
        record("long", session="s", output=7),
        think("next", "s", 10),
    ]
    recorder = serve(workload)
    assert column(recorder, "arrival_ns") == {"short": 0, "long": 0, "next": 710}


def test_a_refused_turn_does_not_hold_up_its_session():
    workload = [
        record("1", session="s", output=0),
        think("2", "s", 10, prompt=9_000),
        think("3", "s", 10, prompt=17 * 64),
        think("4", "s", 10),
    ]
    recorder = serve(workload)
    assert column(recorder, "finish_reason") == {"3": "rejected", "4": "length"}
    assert column(recorder, "arrival_ns")["4"] == 30


@examples(40)
@given(
    think_times=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    outputs=st.integers(1, 5),
    sessions=st.integers(1, 4),
    max_concurrency=st.sampled_from([None, 1, 3]),
)
def test_turns_of_sessions_never_overlap(think_times, outputs, sessions, max_concurrency):
    workload = [record(f"{session}/0", session=str(session), output=outputs) for session in range(sessions)]
    for turn, think_time_ns in enumerate(think_times, 1):
        workload += [
            think(f"{session}/{turn}", str(session), think_time_ns, output=outputs) for session in range(sessions)
        ]
    recorder = serve(workload, max_concurrency=max_concurrency)
    arrivals, ends = (column(recorder, name) for name in ("arrival_ns", "finish_ns"))
    for session in range(sessions):
        for turn, think_time_ns in enumerate(think_times, 1):
            due_ns = ends[f"{session}/{turn - 1}"] + think_time_ns
            sent_ns = arrivals[f"{session}/{turn}"]
            assert sent_ns == due_ns if max_concurrency is None else sent_ns >= due_ns


def behind(*names, delay_ns=0, dispatched=False):
    return tuple(Predecessor(request_id=name, delay_ns=delay_ns, dispatched=dispatched) for name in names)


def test_a_sub_agent_starts_behind_its_parents_turn_and_the_parent_waits_for_it():
    workload = [
        record("ask", session="parent", output=2),
        record("search", session="agent", output=3, after=behind("ask", delay_ns=50)),
        think("read", "agent", 20, output=2),
        think("go on", "parent", 30, after=behind("read", delay_ns=7)),
        think("end", "parent", 1),
    ]
    recorder = serve(workload)
    assert column(recorder, "arrival_ns") == {"ask": 0, "search": 250, "read": 570, "go on": 777, "end": 878}


def test_a_request_may_wait_for_a_dispatch():
    """It is sent while the other is still being served; a dispatch that waits for a place counts when it is sent."""
    workload = [
        record("1", session="a", output=9),
        record("2", session="b", output=2),
        record("3", session="c", after=behind("2", delay_ns=10, dispatched=True)),
    ]
    assert column(serve(workload), "arrival_ns") == {"1": 0, "2": 0, "3": 10}
    assert column(serve(workload, max_concurrency=1), "arrival_ns") == {"1": 0, "2": 900, "3": 1100}
    assert column(serve(workload, max_concurrency=2), "arrival_ns") == {"1": 0, "2": 0, "3": 200}


def test_what_waits_for_a_refused_request_goes_on():
    workload = [
        record("1", session="a", output=0),
        record("2", session="b", after=behind("1", delay_ns=5)),
        record("3", after=behind("1", "2", delay_ns=5) + behind("2", dispatched=True)),
    ]
    assert column(serve(workload), "arrival_ns") == {"2": 5, "3": 110}


@examples(60)
@given(st.data())
def test_nobody_is_sent_before_those_it_waits_for(data):
    """Whatever waits for whatever, with places at the server scarce or not."""
    integers = st.integers(0, 300)
    workload, predecessors = [], {}
    for index in range(data.draw(st.integers(2, 12))):
        earlier = data.draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        name, session = str(index), str(data.draw(st.integers(0, 4)))
        after = sum(
            (behind(str(of), delay_ns=data.draw(integers), dispatched=data.draw(st.booleans())) for of in earlier), ()
        )
        think_time_ns = data.draw(integers) if any(other.session == session for other in workload) else None
        turns = [other.request_id for other in workload if other.session == session]
        predecessors[name] = after + (() if think_time_ns is None else behind(*turns, delay_ns=think_time_ns))
        workload.append(
            record(name, session=session, think_time_ns=think_time_ns, after=after, output=data.draw(st.integers(1, 4)))
        )
    max_concurrency = data.draw(st.sampled_from([None, 1, 2]))
    recorder = serve(workload, max_concurrency=max_concurrency)
    sent, done = (column(recorder, name) for name in ("arrival_ns", "finish_ns"))
    assert recorder.num_unsent == 0
    assert len(sent) == len(workload)
    for name, after in predecessors.items():
        due_ns = max(((sent if of.dispatched else done)[of.request_id] + of.delay_ns for of in after), default=0)
        assert sent[name] == due_ns if max_concurrency is None else sent[name] >= due_ns


def test_a_turn_without_think_time_is_in_the_next_step_as_if_it_had_been_waiting():
    """As with an arrival, and as with a request that waited for its turn at the client."""
    recorder = serve([record("other", output=9), record("1", session="s"), think("2", "s", 0)])
    assert column(recorder, "arrival_ns")["2"] == column(recorder, "first_scheduled_ns")["2"] == 100


# ---------------------------------------------------------------- conversations told by increments


@examples(30)
@given(st.data())
def test_increments_hit_what_known_tokens_hit(data):
    """A growing prompt of ids, and the same conversation with every token known: the same steps, blocks and hits."""
    lengths = st.integers(1, 70)
    by_ids, by_tokens = [], []
    for session in map(str, range(data.draw(st.integers(1, 4)))):
        prompt, tokens = GrowingPrompt([0, 1], 20, int(session) + 2), []
        for turn in range(data.draw(st.integers(1, 4))):
            new, output = 40 if turn == 0 else data.draw(lengths), data.draw(lengths)
            prompt_tokens, hash_ids, hash_id_ends = prompt.add_turn(new, output)
            fields = {"session": session, "think_time_ns": 10 * turn if turn else None, "prompt": prompt_tokens}
            name = f"{session}/{turn}"
            ids = {"hash_ids": hash_ids, "hash_id_ends": hash_id_ends}
            by_ids.append(record(name, output=output, **fields, **ids))
            tokens = tokens + [10**6 * int(session) * (turn > 0) + 10**3 * turn + n for n in range(new)]
            answer = [10**6 * int(session) + 10**3 * turn + 500 + n for n in range(output)]
            by_tokens.append(record(name, output=output, **fields, token_ids=tokens, output_token_ids=answer))
            tokens = tokens + answer
    options = {
        "usable": data.draw(st.integers(40, 90)),
        "block_size": data.draw(st.sampled_from([1, 5, 16])),
        "asynchronous": data.draw(st.booleans()),
        "max_model_len": 600,
    }
    options["usable"] = options["usable"] * 16 // options["block_size"]
    ids, tokens = (serve(workload, **options) for workload in (by_ids, by_tokens))
    assert rows(ids) == rows(tokens)
    assert ids.steps == tokens.steps


def test_turns_of_increments_hit_the_prompt_and_the_answer_before_but_for_its_last_token():
    prompt = GrowingPrompt([7], 512, 8)
    (p0, ids0, ends0), (p1, ids1, ends1) = prompt.add_turn(100, 60), prompt.add_turn(30, 1)
    workload = [
        record("1", prompt=p0, output=60, hash_ids=ids0, hash_id_ends=ends0, session="s"),
        think("2", "s", 1, prompt=p1, hash_ids=ids1, hash_id_ends=ends1),
    ]
    assert column(serve(workload), "hit_tokens") == {"1": 0, "2": (100 + 59) // 16 * 16}


# ---------------------------------------------------------------- who is not served


def test_what_the_front_end_refuses():
    workload = [
        record("zero", output=0, source="t:1"),
        record("long", prompt=100, source="t:2"),
        record("longer", prompt=101, source="t:3"),
        record("longest", prompt=99, output=50, source="t:4"),
    ]
    recorder = serve(workload, max_model_len=100)
    assert recorder.refused == {"zero output": 1, "prompt >= max_model_len": 2}
    assert recorder.first_refused == {"zero output": "t:1", "prompt >= max_model_len": "t:2"}
    assert column(recorder, "output_tokens") == {"longest": 1}


@both_loops
@pytest.mark.parametrize("kind", ["refused", "rejected", "mixed"])
@pytest.mark.parametrize("max_concurrency", [None, 1, 4])
def test_thousands_in_a_row_that_are_not_served(kind, max_concurrency, asynchronous):
    """Each makes room for the next one at once: this must not nest."""
    refused, rejected = {"output": 0}, {"prompt": 100 * 16}
    fields = {"refused": [refused], "rejected": [rejected], "mixed": [refused, rejected, rejected]}[kind]
    workload = [record("first", output=2)]
    workload += [record(index, **fields[index % len(fields)]) for index in range(5_000)]
    workload.append(record("last", output=2))
    recorder = serve(workload, asynchronous=asynchronous, max_concurrency=max_concurrency)
    reasons = Counter(recorder.requests.finish_reason)
    assert reasons["length"] == 2
    assert reasons["rejected"] + recorder.refused.total() == 5_000
    assert recorder.scheduler.statistics.num_rejected == reasons["rejected"]


def test_a_rejected_request_ends_at_the_instant_of_its_arrival_unscheduled():
    recorder = serve([record("big", 30, prompt=65 * 16)])
    row = rows(recorder)["big"]
    assert (row["finish_reason"], row["finish_message"]) == ("rejected", "needs 65 blocks, pool 64")
    assert row["arrival_ns"] == row["finish_ns"] == 30
    assert row["first_scheduled_ns"] == row["first_token_ns"] == NEVER
    assert "never fits" in recorder.first_refused


@both_loops
def test_a_request_that_outgrows_the_pool(asynchronous):
    """Where the end is not known beforehand, a request may turn out too long (D5)."""
    recorder = serve(
        [record("a", prompt=120, output=60), record("b", output=4)],
        usable=9,
        ignore_eos=False,
        asynchronous=asynchronous,
    )
    assert column(recorder, "output_tokens") == {"a": 25, "b": 4}
    assert column(recorder, "finish_reason") == {"a": "capacity", "b": "stop"}


def test_an_id_that_is_in_flight():
    workload = [record("x", output=5), record("x", 10, source="t:2")]
    with pytest.raises(WorkloadError, match=r"t:2: request id 'x'"):
        serve(workload)


def test_an_id_that_is_in_flight_when_another_request_ends():
    """The request is sent by the engine's process, not by the timer of arrivals."""
    workload = [record("x", output=5), record("y"), record("x", source="t:3")]
    with pytest.raises(WorkloadError, match=r"t:3: request id 'x'"):
        serve(workload, max_concurrency=2)


@both_loops
def test_an_id_may_come_back_after_its_request_ended(asynchronous):
    workload = [record("x", 1000 * index, output=2) for index in range(4)]
    recorder = serve(workload, asynchronous=asynchronous)
    assert recorder.requests.request_id == ["x"] * 4
    recorder = serve([record("x", output=2)] * 4, asynchronous=asynchronous, max_concurrency=1)
    assert list(recorder.requests.output_tokens) == [2] * 4


# ---------------------------------------------------------------- no progress, and too much of it


@both_loops
def test_a_server_that_hangs_as_vllm_does_ends_with_what_is_unfinished(asynchronous):
    """D5, S16: the clock stands still, and the run ends with the names of those who wait."""
    workload = [record("ok", output=3), record("big", 50, prompt=160), record("small", 60, output=4)]
    recorder = serve(workload, usable=9, asynchronous=asynchronous, vllm_strict=True)
    assert recorder.unfinished == ["big", "small"]
    assert recorder.requests.request_id == ["ok"]
    assert recorder.end_ns == 300


@both_loops
def test_a_server_that_hangs_still_hears_later_arrivals(asynchronous):
    """With priorities a later, more important request is served though the head of the queue is stuck."""
    workload = [record("big", prompt=160), record("important", 5_000, priority=-1)]
    recorder = serve(workload, usable=9, asynchronous=asynchronous, vllm_strict=True, scheduling_policy="priority")
    assert recorder.unfinished == ["big"]
    assert column(recorder, "finish_ns") == {"important": 5_100}
    assert list(recorder.steps.scheduled_ns) == sorted(recorder.steps.scheduled_ns)
    assert len(recorder.steps.tokens) < 100


def test_a_request_that_preempts_itself_for_ever(monkeypatch):
    """S16 (inference-sim#1057, inference-sim#963): admitted chunk by chunk, a prompt above the pool goes in circles."""
    monkeypatch.setattr("kvtwin.sim.serving._PATIENCE_STEPS", 100)
    recorder = serve(
        [record("0", prompt=13, output=2)],
        usable=3,
        block_size=4,
        enable_prefix_caching=False,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=False,
        vllm_strict=True,
    )
    assert recorder.unfinished == ["0"]
    assert 100 <= len(recorder.steps.tokens) < 5_000
    assert recorder.scheduler.statistics.num_preemptions > 5


def test_a_long_prefill_is_progress(monkeypatch):
    """Thousands of steps without any output are no reason to give up."""
    monkeypatch.setattr("kvtwin.sim.serving._PATIENCE_STEPS", 10)
    recorder = serve([record("a", prompt=900), record("b", prompt=900)], usable=200, max_num_batched_tokens=1)
    assert recorder.unfinished == []
    assert column(recorder, "finish_reason") == {"a": "length", "b": "length"}


@both_loops
@pytest.mark.parametrize("budget", [1, 7, 64])
def test_no_step_does_more_than_the_budget(budget, asynchronous):
    """S17 (inference-sim#1121: 125,000 tokens/s where vLLM does 3,000)."""
    recorder = serve(
        [record(index, index, prompt=20, output=10) for index in range(30)],
        usable=100,
        asynchronous=asynchronous,
        max_num_batched_tokens=budget,
        max_num_seqs=8,
    )
    assert max(recorder.steps.tokens) <= budget
    assert max(recorder.steps.running) <= 8
    outputs = sum(recorder.requests.output_tokens)
    assert outputs == 300
    assert outputs / recorder.end_ns <= min(8, budget) / 100


def test_thousands_of_simultaneous_arrivals():
    simulated = ServerSimulation(
        EngineConfig(num_blocks=2000, async_scheduling=True, max_num_seqs=256), SimulatedExecutor(FixedStepTime())
    )
    recorder = simulated.run(record(index) for index in range(5_000))
    assert recorder.requests.request_id == [str(index) for index in range(5_000)]
    assert recorder.peak_requests == 5_000


def test_one_timer_waits_for_the_next_arrival():
    """However often the client's queue runs empty, no more than one look at the file per arrival and completion."""
    simulated = simulation(max_concurrency=1)
    looks = []
    read = simulated._clients._read_arrivals

    def counting(event=None):
        looks.append(event)
        read(event)

    simulated._clients._read_arrivals = counting
    bursts = [record(f"{burst}/{index}", 1_000 * burst) for burst in range(60) for index in range(2)]
    simulated.run(bursts)
    assert len(looks) <= 2 * len(bursts) + 1


# ---------------------------------------------------------------- the end of an output


@both_loops
@pytest.mark.parametrize("outputs", [[1], [2], [5], [3, 1, 7, 4]])
def test_outputs_that_end_by_themselves(outputs, asynchronous):
    """Same lengths as with a limit; asynchronously each request runs in one step more, in vain."""
    workload = [record(index, prompt=16, output=length) for index, length in enumerate(outputs)]
    limited = serve(workload, asynchronous=asynchronous)
    stopped = serve(workload, asynchronous=asynchronous, ignore_eos=False)
    for name in ("output_tokens", "first_token_ns", "finish_ns"):
        assert column(stopped, name) == column(limited, name)
    assert set(stopped.requests.finish_reason) == {"stop"}
    wasted = len(outputs) if asynchronous else 0
    assert sum(stopped.steps.tokens) == sum(limited.steps.tokens) + wasted
    assert stopped.inter_token_latencies_ns == limited.inter_token_latencies_ns


@both_loops
def test_known_output_tokens_are_hit_by_the_next_turn(asynchronous):
    tokens, answer = list(range(32)), list(range(100, 133))
    conversation = tokens + answer + [7]
    workload = [
        record("1", prompt=32, output=33, token_ids=tokens, output_token_ids=answer, session="s"),
        think("2", "s", 1, prompt=66, token_ids=conversation),
    ]
    recorder = serve(workload, asynchronous=asynchronous)
    assert column(recorder, "hit_tokens") == {"1": 0, "2": 64}


def test_unknown_prefixes_are_counted():
    workload = [record("a", prompt=40), record("b", 500, prompt=40), record("c", 900, 33, token_ids=[1] * 33)]
    recorder = serve(workload)
    assert recorder.num_requests_unknown_prefix == 2
    assert sum(recorder.requests.hit_tokens) == 0


def test_progress_is_reported_for_everyone():
    done = []
    executor = SimulatedExecutor(FixedStepTime())
    simulated = ServerSimulation(EngineConfig(num_blocks=9), executor, on_progress=done.append)
    simulated.run([record("a"), record("b", output=0), record("c", prompt=9 * 16)])
    assert done == [1, 2, 3]


# ---------------------------------------------------------------- several samples of one prompt

both_ways = pytest.mark.parametrize("way", ["prefix", "fork"])


@both_ways
@both_loops
def test_samples_are_requests_of_one_record(way, asynchronous):
    """The client's next turn comes when all samples of this one are done; sample 0 is what it goes on from."""
    first = record("a", prompt=40, output=5, n=3, session="s", token_ids=range(40), output_token_ids=range(40, 45))
    second = record("b", prompt=46, output=1, session="s", think_time_ns=50, token_ids=range(46))
    recorder = serve([first, second], asynchronous=asynchronous, parallel_sampling=way)
    found = rows(recorder)
    assert set(found) == {"0_a", "1_a", "2_a", "b"}
    assert [found[name]["record_index"] for name in ("0_a", "1_a", "2_a", "b")] == [0, 0, 0, 1]
    assert found["b"]["arrival_ns"] == max(found[f"{index}_a"]["finish_ns"] for index in range(3)) + 50
    assert found["b"]["hit_tokens"] == 32
    assert [found[f"{index}_a"]["hit_tokens"] for index in range(3)] == [0, *[32 if way == "prefix" else 0] * 2]
    assert [found[f"{index}_a"]["forked_tokens"] for index in range(3)] == [0, *[40 if way == "fork" else 0] * 2]
    assert recorder.peak_requests == 1


@both_ways
def test_a_client_waits_for_all_samples(way):
    """One client at a time: the second prompt is sent when the last sample of the first has ended."""
    recorder = serve([record(0, n=4, output=3), record(1)], max_concurrency=1, max_num_seqs=2, parallel_sampling=way)
    found = rows(recorder)
    assert found["1"]["arrival_ns"] == max(found[f"{index}_0"]["finish_ns"] for index in range(4))


def test_samples_of_an_unknown_prompt_hit_each_other():
    recorder = serve([record("a", prompt=40, n=3), record("b", prompt=40)])
    assert column(recorder, "hit_tokens") == {"0_a": 0, "1_a": 32, "2_a": 32, "b": 0}


@both_ways
def test_a_prompt_that_never_fits_is_rejected_once(way):
    recorder = serve([record("a", prompt=40, n=3), record("b")], usable=2, parallel_sampling=way)
    assert recorder.rejected.total() == 1
    assert recorder.incomplete_records == {0}
    assert Counter(recorder.requests.finish_reason) == {"rejected": 3, "length": 1}


def test_samples_that_hang_are_one_unfinished_record():
    recorder = serve([record("a", prompt=40, n=3)], usable=2, vllm_strict=True)
    assert recorder.unfinished == ["a"]


@both_loops
def test_both_ways_serve_all_samples_on_a_small_pool(asynchronous):
    workload = [
        record(index, arrival_ns=50 * index, prompt=10 + 7 * index, output=12, n=1 + index % 4) for index in range(12)
    ]
    for way in ("prefix", "fork"):
        for caching in (True, False):
            recorder = serve(
                workload, usable=24, asynchronous=asynchronous, parallel_sampling=way, enable_prefix_caching=caching
            )
            assert sum(recorder.requests.output_tokens) == sum(12 * each.n for each in workload)
            assert sum(recorder.requests.preemptions) > 0
            assert bool(recorder.scheduler.statistics.num_forks) is (way == "fork")


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_run_python_looks_for_cycles_as_often_as_before(fails):
    before, during = gc.get_threshold(), []

    def done(record):
        during.append(gc.get_threshold())
        if fails:
            raise ZeroDivisionError

    server = simulation()
    server.on_done = done
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        server.run([record(0)])
    assert gc.get_threshold() == before
    assert len(during) == 1
    assert during[0] != before
