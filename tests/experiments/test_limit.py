"""``kvtwin limit``: both sides of every limit are what replays say, and what cannot be looked for is refused."""

import json
from concurrent.futures import Executor, Future

import pytest

from kvtwin.experiments.limits import search as limit_search
from kvtwin.experiments.limits.bracket import RateGrid
from kvtwin.experiments.limits.search import Criterion, Search, find_limits
from kvtwin.experiments.options.limit import LimitOptions
from tests.experiments.conftest import mooncake_row

SERVER = ("--num-gpu-blocks-override", 300, "--max-model-len", 2048)
ROUGH = ("--precision", 0.5)
"""Keeps the number of replays small."""


@pytest.fixture
def busy(write):
    """Requests that preempt one another in 300 blocks if they come fast."""
    rows = (
        mooncake_row(index, timestamp=500 * index, input_length=800, output_length=600, hash_ids=[0, index + 1])
        for index in range(24)
    )
    return write(*rows)


@pytest.fixture
def limits(kvtwin):
    def run(*words):
        outcome = kvtwin("limit", *words, "--workers", 1, "--json")
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)

    return run


def test_both_sides_of_every_limit_are_what_replays_say(kvtwin, limits, busy):
    levels = ("--goodput", "ttft:100", "tpot:6")
    facts = limits(busy, *SERVER, *ROUGH, *levels)
    (server,) = facts["servers"]
    preemption, ttft, tpot, together = server["limits"]
    assert preemption["criterion"] == "no preemption"
    assert ttft["criterion"] == "p99 TTFT at most 100 ms"
    assert together["criterion"] == "all together"

    def summary(rate):
        return json.loads(kvtwin("replay", busy, *SERVER, "--rate-scale", rate, "--json").out)

    bounds = ((preemption, "num_preemptions", 0), (ttft, "p99_ttft_ms", 100), (tpot, "p99_tpot_ms", 6))
    for found, key, bound in bounds:
        held, failed = found["highest_held"], found["lowest_failed"]
        assert 1 < failed / held <= 1.5, found
        assert summary(held)[key] == found["value_at_held"] <= bound
        assert summary(failed)[key] == found["value_at_failed"] > bound
    assert together["highest_held"] <= min(found["highest_held"] for found, _, _ in bounds)
    at_held = summary(preemption["highest_held"])
    assert preemption["requests_per_s_at_held"] == at_held["request_rate"]
    assert preemption["tokens_per_s_at_held"] == at_held["total_token_throughput"]
    tried = [row["rate"] for row in server["replays"]]
    assert tried == sorted(set(tried))


def test_memory_fractions_are_searched_one_by_one(limits, busy):
    options = ("--gpu", "rtx-4090", "--max-model-len", 2048, "--memory-fractions", "0.75,0.92")
    facts = limits(busy, *options, "--precision", 1)
    small, large = facts["servers"]
    assert (small["memory_fraction"], large["memory_fraction"]) == (0.75, 0.92)
    assert small["num_gpu_blocks"] < large["num_gpu_blocks"]
    assert small["limits"][0]["highest_held"] < large["limits"][0]["highest_held"]
    assert len(small["limits"]) == 1  # nothing to hold together


def test_where_nothing_binds_and_where_nothing_holds(kvtwin, mooncake):
    outcome = kvtwin(
        "limit", mooncake(), "--num-gpu-blocks-override", 2000, "--max-model-len", 2048,
        *ROUGH, "--goodput", "ttft:0.001", "--workers", 1,
    )  # fmt: skip
    assert outcome.code == 0
    assert "no preemption: holds up to 64, the highest tried" in outcome.out
    assert "p99 TTFT at most 0.001 ms: fails even at 0.015625, the lowest tried" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    (row,) = [row for row in rows if row[3:5] == ["no", "preemption"]]
    assert (row[1:6], row[-4:]) == (["given", "2,000", "no", "preemption", "64"], ["0", ">", "64", "-"])


def test_the_hit_rate_is_held_against_what_is_possible(kvtwin, limits, mooncake):
    trace, server = mooncake(), ("--num-gpu-blocks-override", 2000, "--max-model-len", 2048, "--warmup-requests", 5)
    facts = limits(trace, *server, *ROUGH, "--hit-rate-within", 0.1)
    found = facts["servers"][0]["limits"][1]
    assert found["criterion"] == "hit rate within 10 points of possible"
    assert found["value_at_held"] <= 0.1
    assert found["lowest_failed"] is None or found["value_at_failed"] > 0.1
    rate = found["highest_held"]
    summary = json.loads(kvtwin("replay", trace, *server, "--rate-scale", rate, "--json").out)
    assert found["value_at_held"] == summary["possible_hit_rate"] - summary["prefix_cache_hit_rate"]


@pytest.mark.parametrize("option", ["--request-rate", "--session-rate"])
def test_other_rates_are_searched_from_where_they_start(limits, mooncake, option):
    facts = limits(mooncake(8), *SERVER, "--precision", 1, option, 2)
    assert (facts["rate_option"], facts["lowest_rate"], facts["highest_rate"]) == (option[2:], 2 / 64, 128)
    assert facts["servers"][0]["replays"][0]["rate"] >= 2 / 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate-scale", 2), ["--rate-scale", "limit varies it itself"]),
        (("--max-concurrency", 2), ["--max-concurrency"]),
        (("--concurrent-sessions", 2), ["--concurrent-sessions"]),
        (("--request-rate", "inf"), ["--request-rate", "finite"]),
        (("--precision", 0), ["--precision"]),
        (("--hit-rate-within", 2), ["--hit-rate-within"]),
        (("--goodput", "speed:3"), ["--goodput"]),
        (("--memory-fractions", "0.5,2"), ["--memory-fractions"]),
        (("--memory-fractions", "0.5"), ["--memory-fractions", "--num-gpu-blocks-override"]),
        (("--num-gpu-blocks-override", 20), ["max_model_len"]),
        (("--block-sise", 16), ["--block-sise", "--block-size"]),
    ],
)
def test_mistakes(kvtwin, mooncake, options, words):
    kvtwin("limit", mooncake(2), *SERVER, *options, "--workers", 1).complains(*words)


def test_lengths_alone_have_no_ceiling(kvtwin, native):
    path = native({}, {})
    kvtwin("limit", path, *SERVER, "--hit-rate-within", 0.1, "--workers", 1).complains(
        "hit rate within 10 points", "not known"
    )


def test_a_server_that_cannot_start_does_not_stop_the_others(kvtwin, mooncake):
    outcome = kvtwin(
        "limit", mooncake(4), "--gpu", "rtx-4090", "--max-model-len", 8192, "--memory-fractions", "0.3,0.92",
        "--precision", 1, "--workers", 1,
    )  # fmt: skip
    assert outcome.code == 1
    assert "* memory 0.3: " in outcome.out
    assert "  0.92 " in outcome.out


class AtOnce(Executor):
    """Runs everything when it is submitted."""

    def submit(self, function, /, *args):
        future = Future()
        future.set_result(function(*args))
        return future


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_limits_do_not_depend_on_the_number_of_processes(monkeypatch, workers):
    """What idle processes replay ahead is neither shown nor counted."""

    def summary_of(options, workload):
        return {"completed": 1, "x": options.rate_scale, "y": options.rate_scale % 0.3}  # y is not monotone

    monkeypatch.setattr(limit_search, "summary_of", summary_of)
    criteria = (Criterion("x", "x", 0.7), Criterion("y", "y", 0.2))
    search = Search(LimitOptions(trace="t"), "rate_scale", RateGrid.of_precision(1.0, 0.05), criteria)
    find_limits([search], AtOnce, workers, lambda: None)
    brackets = [search.bracket(question) for question in search.questions]
    assert (brackets[0].held, brackets[0].failed) == (-9, -8)
    alone = Search(search.options, "rate_scale", search.grid, criteria)
    find_limits([alone], AtOnce, 1, lambda: None)
    assert brackets == [alone.bracket(question) for question in alone.questions]
    assert search.steps == alone.steps == sorted(alone.replays)
    assert search.contradictions(criteria[1:]) == alone.contradictions(criteria[1:]) != []
