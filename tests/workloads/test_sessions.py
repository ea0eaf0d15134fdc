import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.workloads import Predecessor, RequestRecord
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.time_units import SECOND_NS


def record(name, arrival_ns=0, session=None, think_time_ns=None, after=()):
    return RequestRecord(
        request_id=name,
        arrival_ns=arrival_ns,
        prompt_tokens=5,
        output_tokens=1,
        session=session,
        think_time_ns=think_time_ns,
        after=tuple(Predecessor(request_id=of, delay_ns=delay, dispatched=is_early) for of, delay, is_early in after),
    )


RECORDS = [
    record("a0", 0, "a"),
    record("a1", 10, "a", 10),
    record("helper0", 30, "helper", after=[("a1", 20, False)]),
    record("helper1", 35, "helper", 5),
    record("a2", 135, "a", 100, after=[("helper1", 100, False)]),
    record("aside", 16, "aside", after=[("a1", 6, True)]),
    record("b0", 7, "b"),
    record("b1", 1007, "b", 1000),
    record("single", 8),
]
"""A session with two sub-agents, one of them launched and forgotten; a plain one; and a lone request."""


def play(**options):
    return {played.request_id: played for played in PlayedSessions(RECORDS, **options)}


def arrivals(**options):
    return {name: played.arrival_ns for name, played in play(**options).items()}


def test_without_settings_only_the_order_changes():
    played = list(PlayedSessions(RECORDS))
    assert played == sorted(RECORDS, key=lambda record: record.arrival_ns)


def test_sessions_start_together_at_an_infinite_rate():
    assert arrivals(session_rate=float("inf")) == {
        "a0": 0, "b0": 0, "single": 0, "a1": 10, "aside": 16, "helper0": 30, "helper1": 35, "a2": 135, "b1": 1000,
    }  # fmt: skip


def test_sessions_start_at_a_rate_in_their_order():
    records = [record(str(index), session=str(index)) for index in range(4_000)]
    starts = [played.arrival_ns for played in PlayedSessions(records, session_rate=8.0)]
    gaps = np.diff(starts)
    assert [played.request_id for played in PlayedSessions(records, session_rate=8.0)] == list(map(str, range(4_000)))
    assert gaps.mean() == pytest.approx(SECOND_NS / 8, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    same, other = (PlayedSessions(records, session_rate=8.0, seed=seed) for seed in (0, 1))
    assert [played.arrival_ns for played in same] == starts != [played.arrival_ns for played in other]


def test_turns_keep_their_distance_from_the_start():
    at_rate = arrivals(session_rate=1e6, seed=3)
    start = at_rate["a0"]
    assert at_rate["a2"] - start == 135
    assert at_rate["b1"] - at_rate["b0"] == 1000
    assert at_rate["aside"] - start == 16


def test_every_pause_is_replaced_but_no_dispatch_waits_longer():
    played = play(pause_ns=lambda pause_ns: min(pause_ns, 8))
    assert [played[name].think_time_ns for name in ("a0", "a1", "helper1", "a2", "b1")] == [None, 8, 5, 8, 8]
    assert played["a2"].after == (Predecessor(request_id="helper1", delay_ns=8),)
    assert played["aside"].after == (Predecessor(request_id="a1", delay_ns=6, dispatched=True),)
    assert {name: played[name].arrival_ns for name in played} == {
        "a0": 0, "b0": 7, "a1": 8, "single": 8, "aside": 14, "b1": 15, "helper0": 16, "helper1": 21, "a2": 29,
    }  # fmt: skip


@given(st.integers(1, 5), st.integers(0, 20))
def test_a_subset_holds_whole_sessions(num_sessions, seed):
    sessions = PlayedSessions(RECORDS, num_sessions=num_sessions, seed=seed)
    names = {played.request_id for played in sessions}
    families = [{"a0", "a1", "a2", "helper0", "helper1", "aside"}, {"b0", "b1"}, {"single"}]
    whole = [family for family in families if family <= names]
    assert names == set().union(*whole)
    assert len(whole) == sessions.num_sessions == min(num_sessions, 3)
    assert len(sessions) == len(names)


def test_users_play_one_session_after_another():
    """Each starts when all of the one before is over, its sub-agents too."""
    played = play(concurrent_sessions=1)
    assert list(played) == ["a0", "a1", "aside", "helper0", "helper1", "a2", "b0", "b1", "single"]
    assert {of.request_id for of in played["b0"].after} == {"a2", "helper1", "aside"}
    assert [of.request_id for of in played["single"].after] == ["b1"]
    assert (played["b1"].after, played["a0"].after) == ((), ())
    played = play(concurrent_sessions=2)
    assert {name for name in played if name in ("a0", "b0", "single") and not played[name].after} == {"a0", "b0"}
    assert {of.request_id for of in played["single"].after} == {"a2", "helper1", "aside"}
