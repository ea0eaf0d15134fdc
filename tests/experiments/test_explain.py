"""``kvtwin explain``: what is told of a request is what happened to it."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from kvtwin.experiments.narration import explanation
from kvtwin.experiments.narration.narrator import Narrator
from tests.cases.engine_harness import Engine
from tests.experiments.conftest import tokens

TIGHT = ["--num-gpu-blocks-override", "60", "--max-model-len", "640", "--max-num-seqs", "16", "--gpu", "rtx-4090"]
TIGHT += ["--max-num-batched-tokens", "128", "--check"]
STEP_KINDS = {"wait", "admit", "prefill", "decode", "idle", "preempt"}
"""Every step of a request's life is one of these."""

SPECULATION = (
    '{"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", '
    '"synthetic_acceptance_rates": [0.5, 0.25]}'
)
MODES = {
    "vllm": [],
    "synchronous": ["--no-async-scheduling"],
    "priority": ["--scheduling-policy", "priority", "--watermark", "0.02"],
    "swap": ["--preemption-mode", "swap", "--swap-space", "1"],
    "speculation": ["--speculative-config", SPECULATION],
    "contiguous": ["--allocator", "contiguous-pow2"],
    "groups": ["--model", "gpt-oss-20b", "--num-gpu-blocks-override", "200"],
}


@pytest.fixture
def crowd(native):
    """Twenty-four requests that nearly all arrive at once; most share one of two prefixes."""

    def row(index):
        prompt = [*[index % 2] * (40 + 24 * (index % 3)), *range(1000 * index + 2, 1000 * index + 22 + index)]
        return tokens(*prompt, output_tokens=30 + 7 * index % 60, arrival_ns=index * 10**6, priority=index % 3)

    return native(*map(row, range(24)))


@pytest.fixture
def explain(kvtwin):
    def run(trace, request_id, *options):
        outcome = kvtwin("explain", trace, *options, "--request", request_id, "--json")
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)["events"]

    return run


DOCUMENT = Path(__file__).parents[2] / "docs" / "explain.md"
EXAMPLE = DOCUMENT.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]


def of_kind(events, *kinds):
    return [event for event in events if event["kind"] in kinds]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_told_is_what_the_run_recorded(kvtwin, explain, crowd, tmp_path, mode):
    options = (*TIGHT, *MODES[mode])
    assert kvtwin("replay", crowd, *options, "--out", tmp_path / "run").code == 0
    requests = pyarrow.parquet.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    steps = pyarrow.parquet.read_table(tmp_path / "run" / "steps.parquet").to_pylist()
    assert any(row["preemptions"] for row in requests) == (mode not in ("contiguous", "groups"))
    for row in sorted(requests, key=lambda row: -row["preemptions"])[:3] + requests[-1:]:
        events = explain(crowd, row["request_id"], *options)
        arrive, *_, end = events
        assert (arrive["kind"], arrive["time_ns"]) == ("arrive", row["arrival_ns"])
        assert (end["kind"], end["time_ns"]) == ("end", row["finish_ns"])
        assert end["facts"]["reason"] == row["finish_reason"]
        assert end["facts"]["output_tokens"] == row["output_tokens"]
        assert end["facts"]["preemptions"] == row["preemptions"] == len(of_kind(events, "preempt"))
        admits = of_kind(events, "admit")
        assert admits[0]["time_ns"] == row["first_scheduled_ns"]
        assert [admit["facts"]["resumed"] for admit in admits] == [False] + [True] * row["preemptions"]
        hits = [admit["facts"]["computed_tokens"] for admit in admits]
        assert (hits[0], sum(hits[1:])) == (row["hit_tokens"], row["resumed_hit_tokens"])
        for event in of_kind(events, *STEP_KINDS):
            assert event["time_ns"] == steps[event["step"]]["scheduled_ns"]
        lived = of_kind(events, *STEP_KINDS)
        assert [event["step"] for event in lived] == list(range(lived[0]["step"], lived[-1]["step"] + 1))
        for gate in of_kind(events, "gate"):
            assert gate["facts"]["needed_blocks"] <= gate["facts"]["free_blocks"]
        for wait in of_kind(events, "wait"):
            if "needed_blocks" in wait["facts"]:
                free = wait["facts"].get("largest_range", wait["facts"]["free_blocks"])
                assert wait["facts"]["needed_blocks"] > free
        check_tables(events)


def test_samples_are_told_apart_and_forks_named(kvtwin, explain, crowd):
    options = (*TIGHT, "--parallel-samples", "3", "--parallel-sampling", "fork")
    parent, child = (explain(crowd, f"{index}_r2", *options) for index in (0, 1))
    assert explain(crowd, "r2", *options) == parent
    (admit,) = [event["facts"] for event in of_kind(child, "admit") if not event["facts"]["resumed"]]
    assert admit["fork_of"] == "0_r2"
    (table,) = admit["shared_blocks"]
    had = [block for event in of_kind(parent, "lookup") for block in event["facts"]["groups"][0]["hit_blocks"]]
    had += [block for event in of_kind(parent, "take") for block in event["facts"]["blocks"][0]]
    assert set(table) <= set(had)
    copies = of_kind(parent + child, "copy")
    assert copies
    assert all(copy["facts"]["block"] not in table for copy in copies)
    assert "with the prompt of 0_r2, sharing" in kvtwin("explain", crowd, *options, "--request", "1_r2").out


def check_tables(events):
    """Every block that was taken, or hit, is freed again, in the end or when the request is preempted."""
    held = []
    for event in events:
        facts = event["facts"]
        if event["kind"] == "lookup":
            held += [block for group in facts["groups"] for block in group["hit_blocks"] if block]
        elif event["kind"] == "take":
            held += [block for group in facts["blocks"] for block in group if block]
        elif event["kind"] == "free" and "slots" not in facts:
            freed = facts["reused_first"] + facts["evicted_last"] + facts["held_by_others"]
            assert len(freed) == len(set(freed))
            assert set(held) >= set(freed) or any(one["facts"].get("swapped") for one in of_kind(events, "lookup"))
            held = []
    assert held == [] or of_kind(events, "free")[-1]["facts"].get("slots")


@pytest.mark.parametrize("mode", MODES)
def test_listening_changes_nothing(kvtwin, crowd, monkeypatch, mode):
    """The run is the same, to the last figure, with and without an observer."""
    plain = json.loads(kvtwin("replay", crowd, *TIGHT, *MODES[mode], "--json").out)
    summaries = []
    simulate = explanation.replay

    def listen(*args, **settings):
        replayed = simulate(*args, **settings)
        summaries.append(replayed.summary)
        return replayed

    monkeypatch.setattr(explanation, "replay", listen)
    assert kvtwin("explain", crowd, *TIGHT, *MODES[mode], "--request", "r3").code == 0
    assert [plain] == [{"date": plain["date"]} | summary for summary in summaries]


def test_blocks_are_freed_in_the_order_that_is_told():
    engine = Engine(12, block_size=2)
    narrator = Narrator("b", engine.scheduler, lambda: 0)
    engine.scheduler.observe(narrator)
    shared = engine.fresh(4)
    engine.add("a", [*shared, *engine.fresh(3)], 9)
    engine.add("b", [*shared, *engine.fresh(6)], 3)
    engine.iterate()
    engine.iterate()
    before = engine.free_order()
    engine.scheduler.abort("b")
    (free,) = [event.facts for event in narrator.events if event.kind == "free"]
    assert free["held_by_others"] == [2, 1]
    assert engine.free_order() == [*free["reused_first"], *before, *free["evicted_last"]]
    assert free["reused_first"]
    assert free["evicted_last"]


def test_a_small_story(kvtwin, native, tmp_path):
    """Eight blocks for three requests with a common beginning: the last one is preempted twice."""
    rows = [
        tokens(*range(100, 148), output_tokens=40, arrival_ns=0),
        tokens(*range(100, 132), *range(30), output_tokens=12, arrival_ns=10**6),
        tokens(*range(100, 132), *range(50, 80), output_tokens=30, arrival_ns=2 * 10**6),
    ]
    step_time = tmp_path / "step-time.yaml"
    step_time.write_text("model: linear\nstep_ns: 10000000\n")
    options = ["--num-gpu-blocks-override", "9", "--max-model-len", "112", "--max-num-batched-tokens", "64"]
    options += ["--max-num-seqs", "8", "--step-time", step_time, "--request", "r2"]
    story = kvtwin("explain", native(*rows), *options).out.partition("trace.jsonl:4)\n")[2]
    assert story == EXAMPLE


def test_an_unknown_request_is_named_with_its_nearest(kvtwin, native):
    trace = native({"id": "chat-11"}, {"id": "chat-12"}, {"id": "other"})
    run = kvtwin("explain", trace, "--request", "chat-13")
    run.complains("--request", "no request 'chat-13'", "chat-1")
    kvtwin("explain", trace).complains("--request")
    kvtwin("explain", trace, "--request", "other", "--num-prompts", "2").complains("no request 'other'")


def test_a_request_that_never_reached_the_scheduler(kvtwin, native):
    trace = native({"id": "long", "prompt_tokens": 5000}, {"id": "short"})
    outcome = kvtwin("explain", trace, "--max-model-len", "4096", "--request", "long")
    assert outcome.code == 1
    assert outcome.out.endswith("never reached the scheduler: prompt >= max_model_len\n")


def test_a_rejected_request_ends_at_once(kvtwin, native):
    trace = native({"id": "sql", "lora": "sql"}, {"id": "other"})
    outcome = kvtwin("explain", trace, "--request", "sql")
    assert "ends: rejected (needs LoRA adapter sql, but max_loras is 0)" in outcome.out


def test_who_is_explained_may_be_chosen(kvtwin, crowd, tmp_path):
    assert kvtwin("replay", crowd, *TIGHT, "--out", tmp_path / "run").code == 0
    rows = pyarrow.parquet.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    slowest = max(rows, key=lambda row: row["finish_ns"] - row["arrival_ns"])["request_id"]
    preempted = [row["request_id"] for row in rows if row["preemptions"]]

    def chosen(flag):
        return json.loads(kvtwin("explain", crowd, *TIGHT, flag, "--json").out)

    assert chosen("--slowest")["request"] == slowest
    for flag in ("--first-preempted", "--most-recomputed"):
        story = chosen(flag)
        assert story["request"] in preempted
        assert any(event["kind"] == "preempt" for event in story["events"]), story["events"]
    kvtwin("explain", crowd, *TIGHT, "--slowest", "--request", "r2").complains("--request", "--slowest")
    roomy = ("--num-gpu-blocks-override", "4000", "--max-model-len", "2048", "--step-time", "zero")
    kvtwin("explain", crowd, *roomy, "--first-preempted").complains("nothing was preempted")
