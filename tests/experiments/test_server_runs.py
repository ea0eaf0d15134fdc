"""Records of servers: reading them, and comparing a simulation of the same requests with them."""

import json

import pytest

import kvtwin as kv
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.latencies import compare_latencies, latencies
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import ServedRequest, arriving_as_served, served_in_run
from kvtwin.workloads.request_record import RequestRecord
from tests import accuracy

ROWS = [
    {
        "request_id": "b",
        "input_toks": 20,
        "output_toks": 1,
        "arrival_time": 1_000_000_000.5,
        "queued_ts": 70.75,
        "first_token_ts": 71.0,
        "last_token_ts": 71.0,
    },
    {
        "request_id": "a",
        "input_toks": 10,
        "output_toks": 3,
        "arrival_time": 1_000_000_000.0,
        "queued_ts": 70.0,
        "first_token_ts": 70.5,
        "last_token_ts": 72.5,
    },
]


def rows_file(folder, *rows):
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_come_in_order_of_arrival_on_one_clock(tmp_path):
    """Request b waited 0.25 s longer than a until the scheduler saw it."""
    first, second = read_served(rows_file(tmp_path, *ROWS))
    assert first == ServedRequest("a", 10, 3, 0, 500_000_000, 2_500_000_000)
    assert second == ServedRequest("b", 20, 1, 500_000_000, 1_000_000_000, 1_000_000_000)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"first_token_ts": None}, "requests.jsonl:1: first_token_ts: expected a number, got None"),
        ({"input_toks": 1.5}, "requests.jsonl:1: input_toks: expected a whole number, got 1.5"),
        ({"first_token_ts": 60.0}, "requests.jsonl:1: expected queued_ts, first_token_ts and last_token_ts in this"),
        ({"arrival_time": 5.0}, "arrival_time and queued_ts drift apart by 999,999,99"),
    ],
)
def test_a_bad_row_is_named(tmp_path, change, complaint):
    with pytest.raises(UserError, match=complaint):
        read_served(rows_file(tmp_path, ROWS[0] | change, ROWS[1]))


@pytest.mark.parametrize("text", ["", "[]\n", "{\n", '{"input_toks": 1}\n'])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"requests\.jsonl"):
        read_served(path)


def test_a_request_with_one_token_has_no_tpot(tmp_path):
    found = latencies(read_served(rows_file(tmp_path, *ROWS)))
    assert found["TTFT"].tolist() == [0.5, 0.5]
    assert found["TPOT"].tolist() == [1000.0]
    assert found["E2E"].tolist() == [2.5, 0.5]


def test_errors_are_the_simulations_relative_to_the_measurement(tmp_path):
    measured = read_served(rows_file(tmp_path, *ROWS))
    simulated = [measured[0]._replace(first_token_ns=750_000_000), measured[1]]
    errors = {each.name: each.error for each in compare_latencies(measured, simulated)}
    assert errors["mean TTFT"] == pytest.approx(0.25)
    assert errors["mean TPOT"] == pytest.approx(-0.125)
    assert errors["mean E2E"] == errors["makespan"] == 0
    assert len(errors) == 13


def test_a_replay_of_a_record_arrives_as_the_server_saw_it(tmp_path):
    served = read_served(rows_file(tmp_path, *ROWS))
    records = [
        RequestRecord(request_id=str(index), arrival_ns=index, prompt_tokens=prompt, output_tokens=output)
        for index, (prompt, output) in enumerate([(10, 3), (20, 1)])
    ]
    run = kv.replay(arriving_as_served(records, served), progress=False)
    ours = served_in_run({name: run.requests[name].to_numpy() for name in run.requests})
    assert [request[1:4] for request in ours] == [request[1:4] for request in served]
    assert all(request.first_token_ns > request.arrival_ns for request in ours)


def test_other_requests_than_the_servers_are_refused(tmp_path):
    served = read_served(rows_file(tmp_path, *ROWS))
    record = RequestRecord(request_id="0", arrival_ns=0, prompt_tokens=10, output_tokens=4, source="trace:1")
    with pytest.raises(UserError, match="1 requests, and the server's record 2"):
        arriving_as_served([record], served)
    with pytest.raises(UserError, match="trace:1: expected 10 prompt and 3 output tokens"):
        arriving_as_served([record, record], served)


@pytest.mark.slow
@pytest.mark.parametrize("run", accuracy.RUNS, ids=lambda run: run.folder)
def test_the_page_shows_what_comes_out(public_trace, run):
    """Every run's mean errors with the default stand in docs/accuracy.md as they come out."""
    folder = public_trace("llmservingsim")
    record = folder / "measured" / run.folder
    served = read_served(record / "requests.jsonl")
    name, options = next(iter(accuracy.MODELS.items()))
    simulated = accuracy.simulate(folder, run, served, options)
    result = accuracy.Result(run, accuracy.measured_peaks(record / "timeseries.csv"), {name: simulated})
    (row,) = accuracy.overview([result])[2:]
    assert row in (accuracy.REPOSITORY / "docs" / "accuracy.md").read_text(encoding="utf-8")
