"""Dynamo's own formats: dependency graphs, request logs, and Applied Compute's sessions."""

import json

import pytest

from kvtwin.workloads import Predecessor, WorkloadError, open_workload
from kvtwin.workloads.time_units import MILLISECOND_NS

HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}


def node(name, *dependencies, **fields):
    values = {
        "request_id": name,
        "play_id": "p",
        "session_id": "s",
        "model": "m",
        "input_length": 8,
        "output_length": 2,
    }
    values |= {"hash_ids": [1, 2], "not_before_ms": 0, "dependencies": list(dependencies)} | fields
    return json.dumps(values)


def on(name, trigger="completion", delay_ms=5, **fields):
    return {"request_id": name, "trigger": trigger, "delay_ms": delay_ms, "relation": "sequence"} | fields


def message_of(path):
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    return str(caught.value)


def test_a_graph_of_requests(write):
    path = write(
        json.dumps(HEADER),
        node("a", not_before_ms=3),
        node("b", on("a", "dispatch", 1.5), session_id="t"),
        node("c", on("a"), on("b", delay_ms=0), not_before_ms=4),
        node("d", on("c", delay_ms=1), not_before_ms=500),
    )
    a, b, c, d = open_workload(path)
    assert [record.session for record in (a, b, c, d)] == ["p/s", "p/t", "p/s", "p/s"]
    assert (a.after, b.after) == ((), (Predecessor(request_id="a", delay_ns=1_500_000, dispatched=True),))
    assert c.after == (
        Predecessor(request_id="a", delay_ns=5 * MILLISECOND_NS),
        Predecessor(request_id="b", delay_ns=0),
    )
    assert [record.arrival_ns / MILLISECOND_NS for record in (a, b, c, d)] == [3, 4.5, 8, 500]
    assert not any(record.think_time_ns for record in (a, b, c, d))


@pytest.mark.parametrize(("scope", "shared"), [("local", False), ("global", True)])
def test_ids_belong_to_a_play_or_to_the_file_but_never_to_two_models(write, scope, shared):
    rows = [node("a"), node("b", session_id="t"), node("c", play_id="q"), node("d", model="n")]
    a, b, c, d = open_workload(write(json.dumps(HEADER | {"hash_id_scope": scope}), *rows))
    assert a.hash_ids == b.hash_ids
    assert (a.hash_ids == c.hash_ids) == shared
    assert not set(a.hash_ids) & set(d.hash_ids)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"schema": "dynamo.other"}, "schema: expected 'dynamo.agentic_mooncake', got 'dynamo.other'"),
        ({"version": 1}, "version: expected 2, got 1"),
        ({"hash_id_scope": "x"}, "hash_id_scope: expected 'local' or 'global', got 'x'"),
        ({"block_size": 0}, "block_size: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_headers(write, header, message):
    path = write(json.dumps(HEADER | header), node("a"))
    assert message_of(path) == f"{path}:1: {message}"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node("a"), "request_id: expected a new id, got 'a' again"),
        (node("b", on("z")), "dependencies[0]: request_id: expected a request of an earlier line, got 'z'"),
        (node("b", on("b")), "dependencies[0]: request_id: expected a request of an earlier line, got 'b'"),
        (node("b", on("a", "x")), "dependencies[0]: trigger: expected 'dispatch' or 'completion', got 'x'"),
        (node("b", on("a", delay_ms=-1)), "dependencies[0]: delay_ms: expected a time of 0 or more ms, got -1"),
        (node("b", hash_ids=[1, 2, 3]), "hash_ids: expected 8/4 = 2 or 2 ids, got 3"),
        (node("b", hash_ids=[1, 2.5]), "hash_ids: expected integers or strings, got 2.5"),
        (node("b", dependencies=None), "dependencies: expected a list of objects, got None"),
    ],
)
def test_bad_nodes(write, bad, message):
    path = write(json.dumps(HEADER), node("a"), bad)
    assert message_of(path) == f"{path}:3: {message}"


# ---------------------------------------------------------------- request logs


def ended(name, received_ms, taken_ms=10, session=None, parent=None, **replay):
    replay = {"trace_block_size": 4, "input_length": 9, "input_sequence_hashes": [1, 2**64 - 1]} | replay
    request = {"request_id": name, "output_tokens": 2, "request_received_ms": received_ms, "total_time_ms": taken_ms}
    values = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request | {"replay": replay}}
    if session is not None:
        values["agent_context"] = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
    return json.dumps(values)


def tool(child, source, consumer, mode="blocking"):
    claude = {"source_request_id": source, "consumer_request_id": consumer, "child_session_id": child}
    return json.dumps({"event_type": "tool_end", "tool": {"claude": claude | {"execution_mode": mode}}})


def ms(*values):
    return tuple(None if value is None else value * MILLISECOND_NS for value in values)


def test_requests_arrive_in_the_order_in_which_they_were_received(write):
    """The log has them in order of their ends; other events are skipped."""
    path = write('{"event_type": "request_payload"}', ended("b", 1005, 1), ended("a", 1000, 900))
    workload = open_workload(path)
    a, b = workload
    assert (workload.format_name, a.request_id, b.request_id) == ("dynamo-requests", "a", "b")
    assert (a.arrival_ns, b.arrival_ns) == ms(0, 5)
    assert (a.session, a.hash_ids, a.hash_block_tokens, a.prompt_tokens) == (None, [0, 1], 4, 9)


def test_turns_wait_as_they_did_in_the_log(write):
    path = write(
        ended("1", 0, 10, "s"),
        ended("2", 40, 60, "s"),
        ended("3", 50, 20, "s"),
        ended("4", 170, 5, "s"),
        ended("5", 180, 5, "s"),
    )
    records = list(open_workload(path))
    assert tuple(record.think_time_ns for record in records) == ms(None, 30, None, 70, 5)
    assert records[2].after == (Predecessor(request_id="2", delay_ns=10 * MILLISECOND_NS, dispatched=True),)
    assert not any(record.after for record in records[:2] + records[3:])


def test_sub_agents_of_a_log(write):
    path = write(
        ended("ask", 100, 10, "parent"),
        tool("child", "ask", "go on"),
        ended("look", 120, 10, "child", "parent"),
        ended("read", 150, 10, "child", "parent"),
        tool("aside", "ask", "go on", "background"),
        ended("aside", 130, 10, "aside", "parent"),
        ended("go on", 200, 10, "parent"),
        ended("orphan", 300, 10, "orphan", "nobody"),
        ended("unnamed", 250, 10, "unnamed", "parent"),
    )
    records = {record.request_id: record for record in open_workload(path)}
    assert records["look"].after == (Predecessor(request_id="ask", delay_ns=10 * MILLISECOND_NS),)
    assert records["read"].think_time_ns == 20 * MILLISECOND_NS
    assert records["aside"].after == (Predecessor(request_id="ask", delay_ns=20 * MILLISECOND_NS),)
    assert records["go on"].after == (Predecessor(request_id="read", delay_ns=40 * MILLISECOND_NS),)
    assert records["go on"].think_time_ns == 40 * MILLISECOND_NS
    assert records["orphan"].after == ()
    assert records["unnamed"].after == (Predecessor(request_id="go on", delay_ns=40 * MILLISECOND_NS),)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"schema": "x"}', "event_type: expected this key, but it is missing"),
        (
            ended("b", 5).replace("trace.v1", "trace.v2"),
            "schema: expected 'dynamo.request.trace.v1', got 'dynamo.request.trace.v2'",
        ),
        (ended("b", -5), "request: request_received_ms: expected a time of 0 or more ms, got -5"),
        (ended("b", 5, input_length=0), "request: replay: input_length: expected an integer of at least 1, got 0"),
        (
            ended("b", 5, input_sequence_hashes=[1]),
            "request: replay: input_sequence_hashes: expected 9/4 = 2 or 3 ids, got 1",
        ),
        ('{"event_type": "tool_end"}', "tool: expected this key, but it is missing"),
        (tool(5, "a", "b"), "tool: claude: child_session_id: expected a string, got 5"),
        (ended("b", 5, session=5), "agent_context: session_id: expected a string, got 5"),
    ],
)
def test_bad_events(write, bad, message):
    path = write(ended("a", 1), bad)
    assert message_of(path) == f"{path}:2: {message}"


# ---------------------------------------------------------------- Applied Compute

LENGTHS = {
    "num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 5], "tool_call_output_length": [8, 9],
    "tool_call_latency": [0.01, 0.02], "final_assistant_response_length": 6,
}  # fmt: skip


def test_tool_calls_make_a_prompt_grow(write):
    lists = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    without_tools = LENGTHS | {"num_turns": 0} | {key: [] for key in lists}
    workload = open_workload(write(json.dumps(LENGTHS), json.dumps(without_tools)))
    records = list(workload)
    assert [record.request_id for record in records] == ["0/0", "0/1", "0/2", "1/0"]
    assert [(record.prompt_tokens, record.output_tokens) for record in records] == [(16, 4), (28, 5), (42, 6), (16, 6)]
    assert tuple(record.think_time_ns for record in records) == ms(None, 10, 20, None)
    assert tuple(record.arrival_ns for record in records) == ms(0, 10, 30, 0)
    assert [record.hash_id_ends for record in records] == [[20], [33], [48], [22]]
    assert [record.hash_ids for record in records] == [[0], [0], [0], [1]]
    assert not workload.has_starts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_turns": 3}, "tool_call_output_length: expected one for each of 3 turns, got 2"),
        ({"assistant_response_length": [4]}, "assistant_response_length: expected one for each of 2 turns, got 1"),
        ({"tool_call_latency": [1]}, "tool_call_latency: expected a list of 2 times, got [1]"),
        ({"tool_call_latency": [1, -1]}, "tool_call_latency[1]: expected a time of 0 or more s, got -1"),
        ({"input_prompt_length": 0}, "input_prompt_length: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_sessions(write, changes, message):
    path = write(json.dumps(LENGTHS), json.dumps(LENGTHS | changes))
    assert message_of(path) == f"{path}:2: {message}"
