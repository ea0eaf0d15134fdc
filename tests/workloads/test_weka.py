import json

import pytest

from kvtwin.workloads import Predecessor, WorkloadError, open_workload
from kvtwin.workloads.formats.weka import WekaReader
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.time_units import SECOND_NS


def turn(t, prompt_tokens=130, ids=(1, 2), **fields):
    values = {"t": t, "type": "n", "model": "m", "in": prompt_tokens, "out": 5, "hash_ids": list(ids), "api_time": 2.5}
    return {key: value for key, value in (values | fields).items() if value is not None}


def agent(t, *turns, duration_ms=10_000, name="agent_001"):
    return {"t": t, "type": "subagent", "agent_id": name, "duration_ms": duration_ms, "requests": list(turns)}


def session(*entries, name="s", **fields):
    values = {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(entries)}
    return json.dumps(values | fields)


def read(path):
    return {record.request_id: record for record in open_workload(path)}


def test_a_turn_pauses_from_the_end_of_the_answer_before(write):
    records = list(
        open_workload(write(session(turn(0.0), turn(13.0, 200, [1, 2, 3], think_time=99.0), turn(15, 64, [9]))))
    )
    assert [record.request_id for record in records] == ["s/0", "s/1", "s/2"]
    assert {record.session for record in records} == {"s"}
    assert [record.think_time_ns for record in records] == [None, 10_500_000_000, 0]  # the last overlaps by rounding
    assert [record.arrival_ns for record in records] == [0, 10_500_000_000, 10_500_000_000]
    assert [(record.prompt_tokens, record.output_tokens) for record in records] == [(130, 5), (200, 5), (64, 5)]
    assert [record.hash_block_tokens for record in records] == [64] * 3
    assert not any(record.after for record in records)


def test_an_answer_of_unknown_length_takes_no_time(write):
    second = list(open_workload(write(session(turn(0, api_time=None, type="s"), turn(7, think_time=None)))))[1]
    assert second.think_time_ns == 7 * SECOND_NS


def test_a_turn_sent_during_an_answer_waits_for_its_dispatch(write):
    records = read(write(session(turn(0, api_time=30.0), turn(12), turn(40))))
    assert records["s/1"].think_time_ns is None
    assert records["s/1"].after == (Predecessor(request_id="s/0", delay_ns=12 * SECOND_NS, dispatched=True),)
    assert records["s/2"].think_time_ns == 10 * SECOND_NS  # both are answered at 30 s
    assert [record.arrival_ns // SECOND_NS for record in records.values()] == [0, 12, 22]


def test_sub_agents_run_between_two_turns_of_their_parent(write):
    """They start ``duration_ms`` before their ``t``, and the parent goes on when both are done."""
    records = read(
        write(
            session(
                turn(0),
                agent(14.0, turn(0.0), turn(5.0)),
                agent(24.5, turn(0.0, api_time=20.0), name="agent_002", duration_ms=20_500),
                turn(26.0),
                turn(30.0),
            )
        )
    )
    assert list(records) == ["s/0", "s/agent_001/0", "s/agent_001/1", "s/agent_002/0", "s/1", "s/2"]
    first = records["s/agent_001/0"]
    assert (first.session, first.think_time_ns) == ("s/agent_001", None)
    assert first.after == (Predecessor(request_id="s/0", delay_ns=1_500_000_000),)
    assert records["s/agent_001/1"].think_time_ns == 2_500_000_000
    assert records["s/1"].think_time_ns == 2 * SECOND_NS
    assert records["s/1"].after == (
        Predecessor(request_id="s/agent_001/1", delay_ns=2 * SECOND_NS),
        Predecessor(request_id="s/agent_002/0", delay_ns=2 * SECOND_NS),
    )
    assert records["s/1"].arrival_ns == (1.5 + 2.5 + 2) * SECOND_NS  # as if answers took no time
    assert records["s/2"].after == ()


def test_nobody_waits_for_a_sub_agent_that_was_only_launched(write):
    records = read(write(session(turn(0), agent(4.5, turn(0.0), duration_ms=None), turn(5.0))))
    assert records["s/agent_001/0"].after == (Predecessor(request_id="s/0", delay_ns=2 * SECOND_NS),)
    assert records["s/1"].after == ()
    assert records["s/1"].think_time_ns == 2_500_000_000


def test_a_sub_agent_without_requests_is_nobody(write):
    assert list(read(write(session(turn(0), agent(9), turn(10))))) == ["s/0", "s/1"]


def test_equal_ids_are_equal_only_in_one_session_and_model(write):
    path = write(
        session(turn(0), turn(9, model="other"), agent(20, turn(0)), name="a"), session(turn(0), name="b"), name="trace"
    )
    records = read(path)
    first, other_model, sub_agent, other_session = (list(record.hash_ids) for record in records.values())
    assert first == sub_agent
    assert not set(first) & set(other_model)
    assert not set(first) & set(other_session)
    assert not set(other_model) & set(other_session)


def test_sessions_come_one_after_the_other_from_0(write):
    workload = open_workload(write(session(turn(0), turn(9), name="b"), session(turn(0), name="a")))
    assert (workload.format_name, workload.num_unsorted) == ("weka", 0)
    assert [record.request_id for record in workload] == ["b/0", "b/1", "a/0"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (session(turn(0)), "id: expected a new session, got 's' again"),
        (session(name=5), "id: expected a string, got 5"),
        (session(turn(0), name="t", block_size=0), "block_size: expected an integer of at least 1, got 0"),
        (session(turn(0), name="t", hash_id_scope="global"), "hash_id_scope: expected 'local', got 'global'"),
        (session(name="t", requests={}), "requests: expected a list of objects, got {}"),
        (session(5, name="t"), "requests[0]: expected an object, got 5"),
        (session(turn(0, ids=[1, 2, 3]), name="t"), "requests[0]: hash_ids: expected floor(130/64) = 2 ids, got 3"),
        (session(turn(0, ids=[1, -2]), name="t"), "requests[0]: hash_ids: expected integers of at least 0, got -2"),
        (
            session(turn(0, ids=[1, 2**32]), name="t"),
            "requests[0]: hash_ids: expected ids below 4294967296, got 4294967296",
        ),
        (session(turn(0), turn(1, 0, []), name="t"), "requests[1]: in: expected an integer of at least 1, got 0"),
        (session(turn(0, out=-1), name="t"), "requests[0]: out: expected an integer of at least 0, got -1"),
        (session(turn(-1), name="t"), "requests[0]: t: expected a time of 0 or more s, got -1"),
        (session(turn(0, model=None), name="t"), "requests[0]: model: expected this key, but it is missing"),
        (
            session(turn(0, type="x"), name="t"),
            "requests[0]: type: expected 'n' or 's', or 'subagent' in the main thread, got 'x'",
        ),
        (
            session(turn(0), agent(9, turn(0), agent(1)), name="t"),
            "requests[1]: requests[1]: type: expected 'n' or 's', or 'subagent' in the main thread, got 'subagent'",
        ),
        (
            session(agent(9, turn(0), duration_ms="1"), name="t"),
            "requests[0]: duration_ms: expected a time of 0 or more ms, got '1'",
        ),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(session(turn(0)), bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:2: {message}"


def test_a_public_session_with_sub_agents(public_trace):
    """The totals that the file itself states."""
    path = public_trace("weka/trace_0291.json")
    totals = json.loads(path.read_text())["totals"]
    records = list(open_workload(path))
    main = [record for record in records if record.session == "trace_0291"]
    agents = [record for record in records if record.session != "trace_0291"]
    assert (len(main), len(agents)) == (20, 12)
    for part, key in ((main, "parent_tokens"), (agents, "subagent_tokens")):
        assert sum(record.prompt_tokens for record in part) == totals[key]["input"]
        assert sum(record.output_tokens for record in part) == totals[key]["output"]


def test_sessions_are_planned_without_a_second_look_at_prompts(write, monkeypatch):
    """Their turns are known from the first reading; only who is sent is read again."""
    workload = open_workload(write(session(turn(0), turn(9), name="b"), session(turn(0), name="a")))
    assert [(each.request_id, each.hash_ids) for each in workload.turns] == [
        ("b/0", None),
        ("b/1", None),
        ("a/0", None),
    ]
    expected = list(PlayedSessions(workload, session_rate=2.0))
    monkeypatch.setattr(WekaReader, "read", None)
    planned = PlayedSessions(workload, turns=workload.turns, session_rate=2.0)
    monkeypatch.undo()
    assert list(planned) == expected
