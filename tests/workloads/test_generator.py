import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from kvtwin.workloads import open_workload, write_workload
from kvtwin.workloads.distributions import Constant, LogNormal, Uniform
from kvtwin.workloads.formats.demo import DEMO_WORKLOAD
from kvtwin.workloads.generator import SyntheticWorkload, SystemPrompts

PLAIN = SyntheticWorkload(
    num_requests=4_000, conversations_per_s=5.0, user_tokens=Constant(3), output_tokens=Constant(1)
)
CHAT = replace(
    PLAIN,
    num_requests=200,
    turns=Uniform(1, 5),
    think_time_ms=Uniform(0, 3_000),
    system_prompts=SystemPrompts(number=3, length_tokens=Constant(8)),
    output_tokens=Uniform(1, 9),
)


def gaps_s(workload):
    return np.diff([record.arrival_ns for record in workload]) / 1e9


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (float("inf"), 0.0)])
def test_arrivals(burstiness, cv):
    gaps = gaps_s(replace(PLAIN, burstiness=burstiness))
    assert gaps.mean() == pytest.approx(0.2, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_an_infinite_rate_starts_everything_at_0():
    assert {record.arrival_ns for record in replace(PLAIN, conversations_per_s=float("inf"))} == {0}


@pytest.mark.parametrize(
    "change", [{"conversations_per_s": 0.0}, {"burstiness": 0.0}, {"conversations_per_s": float("nan")}]
)
def test_impossible_arrivals(change):
    with pytest.raises(ValueError, match="expected more than 0"):
        replace(PLAIN, **change)


def test_the_seed_decides():
    assert list(CHAT) == list(CHAT)
    assert [record.token_ids for record in CHAT] != [record.token_ids for record in replace(CHAT, seed=1)]


def test_nothing_depends_on_string_hashing():
    program = (
        "import zlib; from kvtwin.workloads.formats.demo import DEMO_WORKLOAD; "
        "print(zlib.crc32(repr(list(DEMO_WORKLOAD)).encode()))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert digests != {""}


def test_requests_come_in_order_and_are_streamed():
    records = list(CHAT)
    assert len(records) == len(CHAT) == 200
    assert [record.arrival_ns for record in records] == sorted(record.arrival_ns for record in records)
    assert len({record.request_id for record in records}) == 200
    assert list(islice(replace(CHAT, num_requests=10**12), 5)) == records[:5]


def test_a_later_turn_repeats_everything_before_it():
    previous = {}
    for record in CHAT:
        assert (len(record.token_ids), len(record.output_token_ids)) == (
            record.prompt_tokens,
            record.output_tokens,
        )
        if record.think_time_ns is None:
            assert record.prompt_tokens == 8 + 3
        else:
            before = previous[record.session]
            assert record.token_ids[:-3] == before.token_ids + before.output_token_ids
            assert record.arrival_ns == before.arrival_ns + record.think_time_ns
        if record.session is not None:
            previous[record.session] = record
    assert len(previous) > 20


def test_an_agents_turn_is_several_requests_with_a_tools_pause_and_output_between_them():
    agents = replace(
        CHAT,
        turns=Constant(2),
        tool_calls=Constant(3),
        tool_tokens=Constant(50),
        tool_time_ms=Constant(7),
        think_time_ms=Constant(900),
    )
    sessions = {}
    for record in agents:
        sessions.setdefault(record.session, []).append(record)
    assert [len(requests) for requests in sessions.values()] == [8] * 25
    for requests in sessions.values():
        assert [record.think_time_ns for record in requests] == [None, *[7 * 10**6] * 3, 900 * 10**6, *[7 * 10**6] * 3]
        for before, record, new in zip(requests, requests[1:], [50] * 3 + [3] + [50] * 3, strict=False):
            assert record.token_ids[:-new] == before.token_ids + before.output_token_ids
    assert len(list(replace(agents, num_requests=11))) == 11


def test_system_prompts_are_shared_by_popularity():
    prompts = SystemPrompts(number=3, length_tokens=Constant(8), zipf_exponent=1.0)
    workload = replace(PLAIN, num_requests=3_000, system_prompts=prompts)
    counts = Counter(tuple(record.token_ids[:8]) for record in workload).most_common()
    assert [count / 3_000 for _, count in counts] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)
    even = Counter(
        tuple(record.token_ids[:8]) for record in replace(workload, system_prompts=replace(prompts, zipf_exponent=0.0))
    )
    assert [count / 3_000 for count in even.values()] == pytest.approx([1 / 3] * 3, abs=0.03)


def test_distributions():
    rng = np.random.default_rng(0)
    draws = {
        distribution: [distribution.draw(rng) for _ in range(2_000)]
        for distribution in (Constant(7), Uniform(2, 4), LogNormal(100, 0.5, 40, 300))
    }
    constant, uniform, lognormal = draws.values()
    assert set(constant) == {7}
    assert set(uniform) == {2, 3, 4}
    assert np.median(lognormal) == pytest.approx(100, rel=0.05)
    assert (min(lognormal), max(lognormal)) == (40, 300)
    assert np.log(lognormal).std() == pytest.approx(0.5, abs=0.05)


def test_the_demo_survives_a_file(tmp_path, written):
    write_workload(tmp_path / "demo.jsonl.gz", DEMO_WORKLOAD)
    assert list(map(written, open_workload(tmp_path / "demo.jsonl.gz"))) == list(map(written, DEMO_WORKLOAD))
