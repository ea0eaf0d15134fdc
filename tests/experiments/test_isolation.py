"""``kvtwin isolation``: the timing side channel between tenants, and what closing it costs."""

import copy
import json
from collections import Counter

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.commands.isolation import BUNDLED
from kvtwin.experiments.isolation.distinguish import distinguish
from kvtwin.experiments.isolation.measure import measure
from kvtwin.experiments.isolation.spec import read_isolation_spec
from kvtwin.experiments.isolation.workloads import attack_records, tenant_records, workload_of
from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replay import replay
from kvtwin.workloads.formats.demo import DEMO_WORKLOAD
from kvtwin.workloads.formats.native import write_workload

SMALL = yaml.safe_load(BUNDLED.read_text())
SMALL["attack"] |= {"probes": 20, "background_requests_per_s": [0, 5], "block_sizes": [16]}
SMALL["workload"] = {"trace": "demo", "tenants": [3]}


@pytest.fixture
def config(tmp_path):
    """Write a small configuration, changed: `section.key` and a value, ... to leave it out."""

    def path(**changes):
        data = copy.deepcopy(SMALL)
        for name, value in changes.items():
            *section, key = name.split("__")
            where = data[section[0]] if section else data
            if value is ...:
                del where[key]
            else:
                where[key] = value
        file = tmp_path / "isolation.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("isolation") / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    return measure(read_isolation_spec(file))


@pytest.mark.slow
def test_without_salts_times_tell(measured):
    for row in measured["attack"]:
        if not row["salts"]:
            assert row["right_median_ttft_ms"] < row["wrong_median_ttft_ms"]
            assert row["auc"] > 0.9
            assert row["accuracy"] > 0.9
            assert row["distinguishable"]
    assert measured["verdicts"][0].startswith("without salts: distinguishable in 2 of 2 settings")


def test_with_salts_nothing_is_learnt(measured):
    for row in measured["attack"]:
        if row["salts"]:
            assert (row["auc"], row["accuracy"], row["distinguishable"]) == (0.5, 0.5, False)
            assert row["right_median_ttft_ms"] == row["wrong_median_ttft_ms"]
    assert (
        measured["verdicts"][1]
        == "with a salt per tenant: not distinguishable: the best threshold is right 50.0% of the time"
    )


def test_the_cost_is_the_difference_of_two_replays(measured, summary_of, tmp_path):
    spec = read_isolation_spec(BUNDLED)
    demo = list(DEMO_WORKLOAD)
    write_workload(tmp_path / "salted.jsonl", tenant_records(demo, 3))
    hits = [
        replay(read_options(ReplayOptions, spec.options | {"trace": str(trace)}, "replay")).summary["prefix_cache_hits"]
        for trace in ("demo", tmp_path / "salted.jsonl")
    ]
    plain, salted = measured["workload"]
    assert [plain["hit_tokens"], salted["hit_tokens"]] == hits
    assert salted["lost_hit_tokens"] == hits[0] - hits[1] > 0
    assert plain["lost_hit_tokens"] == 0


def test_the_attack_loses_what_it_had_in_common(measured):
    """The template: four blocks, which victim and attacker then each compute for themselves."""
    assert [row["lost_hit_tokens"] for row in measured["attack"]] == [0, 64, 0, 64]


@pytest.mark.parametrize("rate", [0, 8])
@pytest.mark.parametrize("with_salts", [True, False])
def test_right_and_wrong_guesses_differ_in_tokens_alone(rate, with_salts):
    attack = read_isolation_spec(BUNDLED).attack
    right, wrong = (attack_records(attack, rate, guesses_right=guess, with_salts=with_salts) for guess in (True, False))
    for one, other in zip(right, wrong, strict=True):
        assert (one.request_id, one.arrival_ns, one.prompt_tokens, one.cache_salt) == (
            other.request_id,
            other.arrival_ns,
            other.prompt_tokens,
            other.cache_salt,
        )
        if not one.request_id.startswith("probe-"):
            assert one.token_ids == other.token_ids
    of = {record.request_id: record for record in right}
    known = attack.template_tokens + attack.secret_tokens
    assert of["probe-3"].token_ids[:known] == of["victim-3"].token_ids[:known]
    assert of["probe-3"].token_ids[known:] != of["victim-3"].token_ids[known:]
    assert {record.cache_salt for record in right} >= ({"victim", "probe"} if with_salts else {None})


def test_conversations_stay_with_their_tenant():
    records = list(DEMO_WORKLOAD)
    salted = list(tenant_records(records, 4))
    tenants = {record.session: set() for record in salted if record.session}
    for record in salted:
        if record.session:
            tenants[record.session].add(record.cache_salt)
    assert all(len(found) == 1 for found in tenants.values())
    assert len(Counter(record.cache_salt for record in salted)) == 4
    assert len(workload_of(salted)) == len(records)


times = st.lists(st.integers(0, 30), min_size=1, max_size=30).map(lambda values: np.array(values, dtype=np.int64))


@given(times, times)
def test_distinction_against_its_definition(short, long):
    found = distinguish(short, long)
    pairs = [(a < b) + (a == b) / 2 for a in short for b in long]
    assert found.auc == pytest.approx(np.mean(pairs))
    thresholds = [-1, *short, *long]
    assert found.accuracy == pytest.approx(max(((short <= t).mean() + (long > t).mean()) / 2 for t in thresholds))
    assert 0.5 <= found.accuracy <= 1


def test_equal_distributions_are_rarely_told_apart():
    rng = np.random.default_rng(0)
    told = [distinguish(*(rng.integers(10**9, size=100) for _ in range(2))).is_significant for _ in range(400)]
    assert np.mean(told) < 0.07


def test_an_empty_sample():
    with pytest.raises(ValueError, match="empty"):
        distinguish(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))


@pytest.mark.slow
def test_the_command_prints_tables_and_verdicts(kvtwin, config):
    file = config(attack__probes=4, attack__background_requests_per_s=[0])
    text, data = kvtwin("isolation", file), kvtwin("isolation", file, "--json")
    assert (text.code, data.code) == (0, 0)
    assert "* with a salt per tenant: not distinguishable" in text.out
    assert "* isolation costs" in text.out
    figures = json.loads(data.out)
    assert [len(figures[name]) for name in ("attack", "workload", "verdicts")] == [2, 2, 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attak": {}}, ["attak: unknown key, expected one of options, attack, workload; nearest: attack"]),
        ({"attack__secret_token": 5}, ["attack: secret_token: unknown key", "nearest: secret_tokens"]),
        ({"workload__tenant": 5}, ["workload: tenant: unknown key", "nearest: tenants"]),
        ({"attack__probes": ...}, ["attack: probes: expected a whole number from 2", "got None"]),
        ({"attack__probes": True}, ["attack: probes: expected a whole number", "got True"]),
        ({"attack__interval_s": "soon"}, ["attack: interval_s: expected a number", "got 'soon'"]),
        ({"attack__delay_s": 9}, ["attack: delay_s: expected less than interval_s, got 9"]),
        ({"attack__block_sizes": 16}, ["attack: block_sizes: expected a list of numbers, got 16"]),
        ({"attack__block_sizes": [16.5]}, ["attack: block_sizes: expected a whole number", "got 16.5"]),
        ({"attack__background_requests_per_s": [float("nan")]}, ["expected a number", "got nan"]),
        ({"attack": []}, ["attack: expected a mapping"]),
        ({"workload__trace": 5}, ["workload: trace: expected a workload file, or demo"]),
        ({"workload__trace": "no-such-file"}, ["no-such-file"]),
        ({"options": {"gpuu": "h200"}}, ["--gpuu", "nearest: --gpu"]),
        ({"options": {"out": "x"}}, ["options: out: not an option"]),
        ({"options": {"gpu": "h200", "max-model-len": 100}}, ["options: not every probe was served"]),
    ],
)
def test_mistakes(kvtwin, config, changes, words):
    kvtwin("isolation", config(**changes)).complains(*words)


def test_a_trace_of_lengths(kvtwin, config, native):
    kvtwin("isolation", config(workload__trace=str(native({})))).complains("does not say which prompts share prefixes")


def test_a_missing_file(kvtwin, tmp_path):
    kvtwin("isolation", tmp_path / "none.yaml").complains("none.yaml: No such file")
