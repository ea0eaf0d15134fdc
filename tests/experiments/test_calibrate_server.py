"""A calibration from what a server recorded: a simulated server with known step times stands for the real one."""

import json

import numpy as np
import pytest
import yaml

import kvtwin as kv
from kvtwin.experiments.calibration.adjustment import Served, fit_adjustment, fit_rows
from kvtwin.experiments.calibration.server import fit_to_server
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import ServedRequest
from tests.experiments.conftest import drawn_requests

SERVER = {"model": "Llama-3.1-8B", "gpu": "rtx-4090", "max_num_seqs": 16, "max_model_len": 8192}
TRUTH = {"model": "adjusted", "base": "roofline", "decode_scale": 1.2, "prefill_scale": 1.5}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The record of a server whose steps take 1.2 times as long, with prompts 1.5 times, and what the server is."""
    folder = tmp_path_factory.mktemp("record")
    (folder / "truth.yaml").write_text(yaml.safe_dump(TRUTH))
    kv.write_workload(folder / "trace.jsonl", drawn_requests(60, 100_000_000, 3000, (10, 60)))
    run = kv.replay(folder / "trace.jsonl", progress=False, step_time=str(folder / "truth.yaml"), **SERVER)
    rows = []
    for row in run.requests.itertuples():
        times = {name: getattr(row, f"{name}_ns") / 1e9 for name in ("arrival", "first_token", "finish")}
        rows.append(
            {
                "request_id": row.request_id,
                "input_toks": row.prompt_tokens,
                "output_toks": row.output_tokens,
                "arrival_time": 1e9 + times["arrival"],
                "queued_ts": times["arrival"],
                "first_token_ts": times["first_token"],
                "last_token_ts": times["finish"],
            }
        )
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {name.replace("_", "-"): value for name, value in SERVER.items()}
    (folder / "server.yaml").write_text(yaml.safe_dump({"trace": str(folder / "trace.jsonl"), "options": options}))
    return folder


def bench(**changes):
    data = {"input_lens": [5, 6], "output_lens": [3, 2], "ttfts": [0.5, 0.25], "start_times": [7.0, 6.0]}
    return data | {"itls": [[0.1, 0.2], [0.3]], "errors": ["", ""]} | changes


def test_what_the_server_did_is_found_again(recorded):
    fit = fit_to_server(recorded / "requests.jsonl", recorded / "server.yaml")
    assert fit.adjustment.scales == pytest.approx((1.2, 1.5, 0), rel=0.03)
    assert fit.adjustment.median_error < 0.05
    assert all(low <= high for low, high in fit.adjustment.intervals)


def test_only_what_the_rows_can_tell_is_fitted():
    """Requests of any batch size tell a factor from a time per step; those of one batch size do not."""
    draw = np.random.default_rng(0)
    steps = draw.integers(100, 1000, 80)
    work_ns = np.column_stack([steps * draw.uniform(5e6, 30e6, 80), draw.uniform(1e8, 3e9, 80), steps])
    scales, correlation = fit_rows(work_ns, work_ns @ (1.2, 1.5, 3e6))
    assert scales == pytest.approx((1.2, 1.5, 3e6), rel=1e-6)
    assert abs(correlation) < 0.98
    work_ns[:, 0] = steps * 10e6
    scales, _ = fit_rows(work_ns, work_ns @ (1.2, 1.5, 3e6))
    assert scales == pytest.approx((1.5, 1.5, 0), rel=1e-6)
    for times in (2, 0):  # prompts are computed in proportion to the rest, or never
        work_ns[:, 1] = times * work_ns[:, 0]
        scales, correlation = fit_rows(work_ns, work_ns @ (1.2, 1.2, 0))
        assert scales == pytest.approx((1.2, 1.2, 0), rel=1e-6)
        assert correlation is None


STEPS, REQUESTS = 20, 20


def two_replicas(scales, steps_together):
    """One after another, requests of one replica that only decode, and of another whose steps all have prompts."""
    ends_ns = [np.arange(1, STEPS * REQUESTS + 1) * 10_000_000 * scale for scale in scales[:2]]
    starts_ns = [np.insert(ends[:-1], 0, 0) for ends in ends_ns]
    steps = {
        "replica": np.repeat([0, 1], STEPS * REQUESTS),
        "start_ns": np.concatenate(starts_ns),
        "end_ns": np.concatenate(ends_ns),
        "sequences": np.ones(2 * STEPS * REQUESTS, dtype=int),
        "tokens": np.repeat([1, 50], STEPS * REQUESTS),
    }
    requests = {
        "replica": np.repeat([0, 1], REQUESTS),
        "request_id": np.arange(2 * REQUESTS).astype(str),
        "arrival_ns": np.concatenate([starts[::STEPS] for starts in starts_ns]),
        "first_token_ns": np.concatenate([ends[STEPS // 2 - 1 :: STEPS] for ends in ends_ns]),
        "finish_ns": np.concatenate([ends[STEPS - 1 :: STEPS] for ends in ends_ns]),
    }
    return Served(requests, steps, steps_together)


def test_steps_of_replicas_that_begin_together_by_chance_are_told_apart():
    measured = two_replicas((1.2, 1.5), False).requests
    times = zip(*(measured[name].astype(int) for name in ("arrival_ns", "first_token_ns", "finish_ns")), strict=True)
    served = [ServedRequest(str(index), 9, 9, *each) for index, each in enumerate(times)]
    fit = fit_adjustment(served, lambda scales: two_replicas(scales, False))
    assert fit.scales[:2] == pytest.approx((1.2, 1.5), rel=0.01)
    assert fit_adjustment(served, lambda scales: two_replicas(scales, True)).correlation is None


def test_the_file_is_one_for_a_replay(recorded, kvtwin, tmp_path):
    out = tmp_path / "fitted.yaml"
    outcome = kvtwin(
        "calibrate", "--from", recorded / "requests.jsonl", "--server", recorded / "server.yaml", "--out", out
    )
    assert outcome.code == 0
    assert "90 % interval" in outcome.out
    run = kv.replay(recorded / "trace.jsonl", progress=False, step_time=str(out), **SERVER)
    assert run.configuration["step_time"]["measured_record"] == "requests.jsonl"


def test_a_bench_file_is_read_in_order_of_arrival(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench()))
    first, second = read_served(path)
    assert (first.prompt_tokens, first.arrival_ns, first.first_token_ns, first.last_token_ns) == (
        6,
        0,
        250_000_000,
        550_000_000,
    )
    assert (second.prompt_tokens, second.arrival_ns) == (5, 1_000_000_000)
    assert second.last_token_ns == 1_800_000_000


def test_failed_requests_are_left_out(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench(errors=["timed out", ""])))
    assert len(read_served(path)) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "expected a JSON object, such as vllm bench serve writes"),
        ("{", r"bench\.json"),
        (
            json.dumps({"ttfts": []}),
            "input_lens is missing: record with vllm bench serve --save-result --save-detailed",
        ),
        (json.dumps(bench(ttfts=[1.0])), "expected lists of equal length"),
        (json.dumps(bench(itls=[1, 2])), "request 0: itls: expected a list of numbers"),
        (json.dumps(bench(output_lens=[0, 0])), "no request succeeded with any output token"),
        (json.dumps(bench(ttfts=[0.5, float("nan")])), "request 1: ttfts: expected a number, got nan"),
        (json.dumps(bench(ttfts=[0.5, float("inf")])), "request 1: ttfts: expected a number, got inf"),
        (json.dumps(bench(itls=[[], [10**400]])), "request 1: itls: expected a number, got 1000.*[.]{3}$"),
        (json.dumps(bench(input_lens=[5, 6.5])), "request 1: input_lens: expected a whole number, got 6.5"),
        (json.dumps(bench(errors=["timed out"])), "errors: expected a list with an entry per request"),
        (json.dumps(bench(errors={"0": ""})), "errors: expected a list with an entry per request"),
        ("[" * 100_000, "maximum recursion depth"),
        (
            json.dumps(bench(ttfts=[0.5, -0.25])),
            "request 1: .*: record all times with one clock",
        ),
        (
            json.dumps(bench(start_times=[7.0, 1.7e9])),
            "requests are served over 19,676 days: record all times",
        ),
        (json.dumps(bench(itls=[[], [1e28]])), "requests are served over .* days: record all times"),
    ],
)
def test_a_bad_bench_file_is_named(tmp_path, text, complaint):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_served(path)


def test_a_record_needs_the_server_and_enough_requests(recorded, kvtwin, tmp_path):
    kvtwin("calibrate", "--from", recorded / "requests.jsonl").complains("needs --server, a YAML file")
    kvtwin("calibrate", "--server", recorded / "server.yaml").complains("--server: needs --from")
    short = tmp_path / "server.yaml"
    data = yaml.safe_load((recorded / "server.yaml").read_text())
    data["options"]["step-time"] = "zero"
    short.write_text(yaml.safe_dump(data))
    kvtwin("calibrate", "--from", recorded / "requests.jsonl", "--server", short).complains("expected roofline or aic")
    first_s = np.quantile([each.first_token_ns for each in read_served(recorded)], 0.1)
    with pytest.raises(UserError, match="expected at least 30 requests of two output tokens or more, got"):
        fit_to_server(recorded, recorded / "server.yaml", known_until_ns=first_s)
