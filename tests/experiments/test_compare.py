"""``kvtwin compare``: what differs is shown, what is equal is folded away, and folders of others are refused."""

import json
import re

import pytest
import yaml

from kvtwin.experiments.comparison.text import text_parts
from kvtwin.experiments.display.tables import as_text
from kvtwin.experiments.records.reader import Run

SERVER = ("--max-model-len", 2048, "--step-time", "roofline")


@pytest.fixture
def replayed(kvtwin, mooncake, tmp_path):
    def run(name, *options, trace=None):
        outcome = kvtwin("replay", trace or mooncake(40), *SERVER, *options, "--out", tmp_path / name)
        assert outcome.code == 0, outcome
        return tmp_path / name

    return run


@pytest.fixture
def three(replayed):
    """A small pool, the same again, and a pool twice as large."""
    fast = ("--rate-scale", 50)
    small = ("--num-gpu-blocks-override", 200, *fast)
    return (
        replayed("small", *small),
        replayed("again", *small),
        replayed("large", "--num-gpu-blocks-override", 400, *fast),
    )


def facts_of(kvtwin, *runs):
    outcome = kvtwin("compare", *runs, "--json")
    assert outcome.code == 0
    return json.loads(outcome.out, parse_constant=pytest.fail)


def test_every_figure_stands_beside_that_of_the_others(kvtwin, three):
    facts = facts_of(kvtwin, *three)
    assert facts["runs"] == ["small", "again", "large"]
    runs = [Run(path) for path in three]
    for row in facts["figures"]:
        values = [run.summary[row["name"]] for run in runs]
        assert row["values"] == values
        assert row["equal"] == (values[0] == values[1] == values[2])
        if isinstance(values[0], int | float) and values[0] != 0 and None not in values:
            assert row["differences"] == [value - values[0] for value in values]
            assert row["relative_differences"][2] == pytest.approx(values[2] / values[0] - 1)
    assert {row["name"] for row in facts["figures"]} == set(runs[0].summary) - {"verdicts"}
    assert [row["name"] for row in facts["options"] if not row["equal"]] == ["num_gpu_blocks_override"]
    assert [row["name"] for row in facts["settings"] if not row["equal"]] == ["engine.num_blocks"]


def test_requests_are_counted_by_how_they_fared(kvtwin, three):
    again, large = facts_of(kvtwin, *three)["requests"]
    assert again["num_compared"] == 40
    differences = [key for key in again if key.startswith("num_") and key != "num_compared"]
    assert [again[key] for key in differences] == [0] * len(differences)
    one, two = (Run(path).requests for path in (three[0], three[2]))
    rows = {name: index for index, name in enumerate(two["request_id"])}
    pairs = [(index, rows[name]) for index, name in enumerate(one["request_id"])]
    assert large["num_more_hit_tokens"] == sum(two["hit_tokens"][j] > one["hit_tokens"][i] for i, j in pairs)
    assert large["num_fewer_preemptions"] == sum(two["preemptions"][j] < one["preemptions"][i] for i, j in pairs)
    waits = [
        (two["first_token_ns"][j] - two["arrival_ns"][j]) - (one["first_token_ns"][i] - one["arrival_ns"][i])
        for i, j in pairs
    ]
    assert large["num_earlier_first_tokens"] == sum(wait < 0 for wait in waits) > 0
    assert large["num_later_first_tokens"] == sum(wait > 0 for wait in waits)


def test_equal_figures_are_folded_away_unless_asked_for(kvtwin, three):
    short = kvtwin("compare", three[0], three[1]).out
    assert "figures: 0 differ" in short
    assert "num_preemptions" not in short
    lines = kvtwin("compare", three[0], three[2]).out.splitlines()
    assert ["--num-gpu-blocks-override", "200", "400"] in [line.split() for line in lines]
    assert ["num_gpu_blocks", "200", "400", "+200", "+100.0"] in [line.split() for line in lines]
    everything = kvtwin("compare", three[0], three[2], "--all").out
    assert "--block-size " in everything
    assert "  block_size " in everything


def test_other_workloads_are_not_matched(kvtwin, mooncake, native, replayed):
    pool = ("--num-gpu-blocks-override", 200)
    one = replayed("one", *pool)
    fewer = replayed("fewer", *pool, "--num-prompts", 10)
    other = replayed("other", *pool, trace=native({}, {}, name="other.jsonl"))
    shared, unlike = facts_of(kvtwin, one, fewer, other)["requests"]
    assert (shared["num_compared"], shared["num_only_first"], shared["num_only_other"]) == (10, 30, 0)
    assert "not_compared" in unlike
    assert "only in one 30 / 0" in kvtwin("compare", one, fewer).out
    assert "not compared: " in kvtwin("compare", one, other).out


@pytest.mark.slow
def test_points_of_a_sweep_are_runs(kvtwin, mooncake, tmp_path):
    spec = tmp_path / "spec.yaml"
    options = {"max-model-len": 2048, "num-gpu-blocks-override": 300}
    axes = {"max-num-seqs": [4, 8]}
    spec.write_text(yaml.safe_dump({"trace": str(mooncake()), "options": options, "axes": axes}))
    kvtwin("sweep", spec, "--out", tmp_path / "sweep")
    facts = facts_of(kvtwin, *sorted((tmp_path / "sweep" / "points").iterdir()))
    assert facts["runs"] == ["000-max-num-seqs=4", "001-max-num-seqs=8"]


def test_folders_that_are_no_runs_are_refused_by_name(kvtwin, three, tmp_path):
    one, broken, _ = three
    kvtwin("compare", one).complains("at least two")
    kvtwin("compare", one, tmp_path / "absent").complains("absent: not the folder of a run")
    kvtwin("compare", one, tmp_path).complains(f"{tmp_path}: not the folder of a run")
    for name, junk, words in (
        ("requests.parquet", (broken / "steps.parquet").read_bytes(), "not the requests of a run"),
        ("requests.parquet", b"junk", "not a table"),
        ("summary.json", b"[]", "not of a run"),
        ("summary.json", b"{", "not JSON"),
        ("config.yaml", b"engine: {}", "not the configuration of a run"),
    ):
        (broken / name).write_bytes(junk)
        kvtwin("compare", one, broken).complains(f"{broken / name}: {words}")


def test_what_was_given_as_an_object_is_told_in_full():
    options = [{"name": "router_config", "values": ['{"prefix_weight": 0}', None, "{}"], "equal": False}]
    facts = {"runs": ["a", "b", "c"], "options": options, "settings": [], "figures": [], "verdicts": [[], [], []]}
    text = as_text(*text_parts(facts | {"requests": 2 * [{"not_compared": "few"}]}, show_all=False))
    assert re.search("--router-config +prefix_weight 0 +- +none", text)


def test_settings_are_told_in_words_and_nothing_is_cut(kvtwin, mooncake, tmp_path):
    speculation = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 2,
    }
    runs = {"a": (), "b": ("--speculative-config", json.dumps(speculation), "--metric-percentiles", "50,90")}
    for name, options in runs.items():
        assert kvtwin("replay", mooncake(3), *SERVER, *options, "--out", tmp_path / name).code == 0
    out = kvtwin("compare", tmp_path / "a", tmp_path / "b", "--all").out
    assert "method ngram, num_speculative_tokens 3, rejection_sample_method synthetic, " in out
    assert re.search(r"--metric-percentiles +99 +50; 90\n", out)
    assert re.search(r"engine.cache_groups +kind full_attention, block_size 16 ", out)
    for sign in ("...", "{", "[", "None", "'"):
        assert sign not in out, sign
