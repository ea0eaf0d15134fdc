"""Records of AIPerf and GuideLLM.

The samples are written by hand after the fields that both projects publish; no file of a run of theirs was at hand.
"""

import json

import pytest

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import ServedRequest

START_NS = 1_759_813_207_532_900_363
MS = 1_000_000


def aiperf_row(start_ns=0, **changes):
    row = {
        "metadata": {
            "session_num": 45,
            "x_request_id": "7609a2e7",
            "request_start_ns": START_NS + start_ns,
            "request_end_ns": START_NS + start_ns + 300 * MS,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "time_to_first_token": {"value": 255.5, "unit": "ms"},
            "request_latency": {"value": 297.25, "unit": "ms"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
            "inter_token_latency": {"value": 5.2, "unit": "ms"},
        },
        "error": None,
    }
    for path, value in changes.items():
        part, name = path.split("__")
        row[part][name] = value
    return row


def guidellm_request(start_s=100.0, **changes):
    timings = {
        "queued": start_s - 1,
        "request_start": start_s,
        "first_token_iteration": start_s + 0.25,
        "last_token_iteration": start_s + 1.5,
        "request_end": start_s + 1.6,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": "a",
        "info": {"status": "completed", "timings": timings | changes},
        "request_start_time": start_s,
        "prompt_tokens": 20,
        "output_tokens": 6,
    }


def guidellm(*requests, benchmarks=1):
    requests = {"successful": list(requests), "incomplete": [], "errored": [guidellm_request()]}
    return {"metadata": {"version": 1}, "args": {}, "benchmarks": [{"requests": requests}] * benchmarks}


@pytest.fixture
def aiperf_file(tmp_path):
    def write(*rows):
        (tmp_path / "profile_export.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    return write


@pytest.fixture
def guidellm_file(tmp_path):
    def write(data):
        (tmp_path / "benchmarks.json").write_text(json.dumps(data))
        return tmp_path

    return write


def test_requests_of_aiperf_are_on_its_clock_and_in_order_of_arrival(aiperf_file):
    folder = aiperf_file(
        aiperf_row(10 * MS), aiperf_row(), aiperf_row(metrics__request_latency={"value": 1, "unit": "s"})
    )
    first, second, third = read_served(folder)
    assert first == ServedRequest("7609a2e7", 550, 9, 0, 255_500_000, 297_250_000)
    assert second.last_token_ns == 1_000_000_000
    assert (third.arrival_ns, third.first_token_ns) == (10 * MS, 10 * MS + 255_500_000)


def test_what_failed_or_warmed_up_is_left_out_of_aiperfs(aiperf_file):
    failed = aiperf_row() | {"error": {"code": 499}, "metrics": {"error_isl": {"value": 550, "unit": "tokens"}}}
    rows = (
        failed,
        failed | {"metrics": None},
        aiperf_row(metadata__was_cancelled=True),
        aiperf_row(metadata__benchmark_phase="warmup"),
    )
    assert len(read_served(aiperf_file(*rows, aiperf_row()))) == 1
    with pytest.raises(UserError, match="no request succeeded"):
        read_served(aiperf_file(*rows))


def test_requests_of_guidellm_are_on_its_clock_and_in_order_of_arrival(guidellm_file):
    once = {"request_id": "b", "prompt_tokens": 7, "output_tokens": 2, "start_time": 99.0, "end_time": 99.9}
    once |= {"first_token_time": 99.5, "last_token_time": 99.75}  # as guidellm 0.3 wrote them
    first, second = read_served(guidellm_file(guidellm(guidellm_request(), once)))
    assert first == ServedRequest("b", 7, 2, 0, 500_000_000, 750_000_000)
    assert second == ServedRequest("a", 20, 6, 1_000_000_000, 1_250_000_000, 2_500_000_000)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (aiperf_row() | {"metadata": None}, "jsonl:1: metadata: expected an object, as AIPerf writes it"),
        (aiperf_row() | {"metrics": None}, "jsonl:1: metrics: expected an object, as AIPerf writes it"),
        (aiperf_row(metrics__request_latency={"value": 1e300, "unit": "s"}), "request_latency: expected a number"),
        (aiperf_row(metrics__request_latency={"value": 1, "unit": ["s"]}), "expected a unit of .*, got \\['s'\\]"),
        (aiperf_row(metadata__request_start_ns=1.5), "request_start_ns: expected a whole number, got 1.5"),
        (aiperf_row(metrics__request_latency=3), "request_latency: expected an object with value and unit, got 3"),
        (
            aiperf_row(metrics__request_latency={"value": 1, "unit": "h"}),
            "expected a unit of ns, us, ms, s, sec, got 'h'",
        ),
        (aiperf_row() | {"metrics": {}}, "time_to_first_token is missing: record with aiperf profile --streaming"),
    ],
)
def test_a_bad_row_of_aiperf_is_named(aiperf_file, row, complaint):
    with pytest.raises(UserError, match=complaint):
        read_served(aiperf_file(row))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"benchmarks": 3}, "benchmarks: expected a list of objects, as guidellm writes it"),
        (guidellm(benchmarks=2), "expected one benchmark, got 2: record each load in a file of its own"),
        ({"benchmarks": [{}]}, r"benchmarks\[0\].requests.successful: expected a list"),
        (guidellm(3), "request 0: expected an object"),
        (guidellm(), "no request succeeded"),
        (
            guidellm(guidellm_request(first_token_iteration=None)),
            "request 0: has no first_token_iteration: record a stream",
        ),
        (guidellm(guidellm_request(request_start="x")), "request_start: expected a number, got 'x'"),
        (guidellm(guidellm_request() | {"prompt_tokens": None}), "prompt_tokens: expected a whole number, got None"),
    ],
)
def test_a_bad_file_of_guidellm_is_named(guidellm_file, data, complaint):
    with pytest.raises(UserError, match=complaint):
        read_served(guidellm_file(data))
