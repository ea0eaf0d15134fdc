"""``kvtwin export`` and the events of a replay: what other tools read out of a run is what happened in it."""

import json
import time
from collections import Counter
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtwin.experiments.commands.demo import DEMO_OPTIONS
from kvtwin.experiments.options.reading import command_words
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.report_page.block_holders import block_holders
from kvtwin.sim.block_changes import BlockChange
from tests.experiments.conftest import SMALL_SERVER

VLLM_METRICS = json.loads((Path(__file__).parent / "data" / "vllm_metrics.json").read_text())
"""Names, types, labels and buckets that vLLM 0.33.0 exposed for a model of 131,072 tokens."""

SPECULATION = (
    '{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic", '
    '"synthetic_acceptance_length": 2}'
)


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """The demo, which preempts, with everything kept."""
    from kvtwin.experiments.command_line import main

    folder = tmp_path_factory.mktemp("demo") / "run"
    words = [
        "replay",
        *command_words(DEMO_OPTIONS),
        "--events",
        "--kv-events",
        "--kv-cache-metrics",
        "--out",
        str(folder),
        "--json",
    ]
    assert main(words) == 0
    return folder


def events_of(folder):
    return pyarrow.parquet.read_table(folder / "events.parquet").to_pylist()


# ---------------------------------------------------------------- events


def test_events_agree_with_the_tables_of_the_run(demo_run):
    run, events = Run(demo_run), events_of(demo_run)
    assert len(events) == len(run.steps["end_ns"])
    for name, column in (("scheduled_tokens", "tokens"), ("hit_tokens", "hit_tokens")):
        assert [sum(row[name]) for row in events] == run.steps[column].tolist()
    for name, column in (("scheduled", "sequences"), ("admitted", "admitted"), ("preempted", "preempted")):
        assert [len(row[name]) for row in events] == run.steps[column].tolist()
    outputs = Counter()
    for row in events:
        outputs.update(dict(zip(row["scheduled"], row["output_tokens"], strict=True)))
    assert outputs == dict(zip(run.requests["request_id"], run.requests["output_tokens"].tolist(), strict=True))
    preempted = Counter(request for row in events for request in row["preempted"])
    assert preempted.total() == run.summary["num_preemptions"] > 0
    assert sorted(request for row in events for request in row["finished"]) == sorted(run.requests["request_id"])


def test_block_changes_lead_to_the_free_blocks_of_every_step(demo_run):
    run = Run(demo_run)
    holders, has_key = np.zeros(run.num_blocks, int), np.zeros(run.num_blocks, bool)
    evictions = 0
    for row, free_blocks in zip(events_of(demo_run), run.steps["free_blocks"].tolist(), strict=True):
        for change, block in zip(row["block_changes"], row["blocks"], strict=True):
            if change == BlockChange.TAKEN:
                assert holders[block] == 0
                evictions += has_key[block]
                holders[block], has_key[block] = 1, False
            elif change == BlockChange.CACHED:
                assert holders[block] > 0
                has_key[block] = True
            else:
                holders[block] += 1 if change == BlockChange.HIT else -1
        assert (holders[1:] == 0).sum() == free_blocks
    assert holders[0] == 0
    assert evictions == run.summary["num_evictions"] == sum(row["evictions"] for row in events_of(demo_run))


def check_holders(run):
    """Every reference to a block is a request that has it in a table, a session's pin, or reserved."""
    seen = set()
    for step, state in block_holders(run):
        counts = {block: len(holders) for block, holders in state.holders.items()}
        if run.configuration["engine"]["retention"] == "lru" and run.configuration["engine"]["allocator"] == "paged":
            assert counts == state.references, step
        else:
            assert all(count <= state.references.get(block, 0) for block, count in counts.items()), step
        assert set(state.holders) <= set(state.content), step
        seen.update(state.content)
    assert not state.holders
    assert len(seen) > 10


@pytest.mark.parametrize(
    ("blocks", "options"),
    [
        (300, ("--async-scheduling",)),
        (300, ("--no-async-scheduling", "--scheduling-policy", "priority")),
        (6000, ("--allocator", "contiguous-max")),
        (300, ("--parallel-samples", "3", "--parallel-sampling", "fork")),
        (300, ("--speculative-config", SPECULATION)),
        (1500, ("--model", "gemma-3-27b-it", "--gpu", "h100")),
        (300, ("--retention", "pin-until-pressure")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_every_way_of_running_has_events_and_runs_the_same(kvtwin, mooncake, export, tmp_path, blocks, options):
    server = ("--num-gpu-blocks-override", blocks, "--max-model-len", 2048)
    trace = mooncake(30)
    for name, extra in (("plain", ()), ("watched", ("--events",))):
        assert kvtwin("replay", trace, *server, *options, *extra, "--out", tmp_path / name).code == 0
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "watched" / name).read_bytes(), name
    run = Run(tmp_path / "watched")
    held = 0
    for row, free_blocks in zip(events_of(run.path), run.steps["free_blocks"].tolist(), strict=True):
        held += sum(1 for change in row["block_changes"] if change in (BlockChange.TAKEN, BlockChange.HIT))
        held -= row["block_changes"].count(BlockChange.FREED)
        assert held >= run.num_blocks - 1 - free_blocks
    assert held == 0
    check_holders(run)
    result = json.loads(export(run.path, "vllm-bench"))
    assert sum(result["output_lens"]) == run.requests["output_tokens"].sum()
    assert json.loads(export(run.path, "perfetto"))["traceEvents"]


def test_events_come_out_the_same(kvtwin, mooncake, tmp_path):
    for name in "ab":
        kvtwin("replay", mooncake(), *SMALL_SERVER, "--events", "--kv-events", "--out", tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        if path.name != "machine.json":
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "trace.jsonl"]


def test_what_a_killed_run_left_is_removed_by_the_next(script, kvtwin, mooncake, tmp_path):
    trace = mooncake(30_000)
    words = ("replay", trace, "--num-gpu-blocks-override", "2000", "--max-model-len", "4096", "--out", tmp_path / "run")
    killed = script(*words, "--events")
    while not list(tmp_path.glob(".run.partial-*/events.parquet")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "run").exists()
    assert kvtwin(*words, "--events", "--num-prompts", "5").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.jsonl"]


def test_an_id_may_come_again(kvtwin, native, export, tmp_path):
    trace = native(*({"id": "again", "arrival_ns": 10**10 * turn, "output_tokens": 2 + turn} for turn in range(3)))
    server = ("--num-gpu-blocks-override", "2000", "--max-model-len", "4096")
    assert kvtwin("replay", trace, *server, "--events", "--out", tmp_path / "run").code == 0
    result = json.loads(export(tmp_path / "run", "vllm-bench"))
    assert [len(pauses) for pauses in result["itls"]] == [1, 2, 3]
    queued = [
        event for event in json.loads(export(tmp_path / "run", "perfetto"))["traceEvents"] if event["name"] == "queued"
    ]
    assert [event["ts"] for event in queued] == [0, 10**7, 2 * 10**7]


def test_a_run_that_fails_leaves_nothing(kvtwin, write, tmp_path):
    trace = write({"kvtwin_workload": 1}, {"id": "a", "arrival_ns": 0, "prompt_tokens": 40, "output_tokens": 3}, "junk")
    kvtwin("replay", trace, *SMALL_SERVER, "--events", "--out", tmp_path / "run").complains("trace.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


def test_kv_events_follow_the_content_of_the_cache(demo_run):
    batches = [json.loads(line) for line in (demo_run / "kv_events.jsonl").read_text().splitlines()]
    assert [batch["ts"] for batch in batches] == sorted(batch["ts"] for batch in batches)
    stored = Counter()
    removed = 0
    for event in (event for batch in batches for event in batch["events"]):
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
            assert event["parent_block_hash"] is None or stored[event["parent_block_hash"]] > 0
            stored.update(event["block_hashes"])
        else:
            assert event["type"] == "BlockRemoved"
            stored.subtract(event["block_hashes"])
            removed += len(event["block_hashes"])
    assert min(stored.values()) >= 0
    assert removed == Run(demo_run).summary["num_evictions"]


# ---------------------------------------------------------------- exports


def test_perfetto_shows_every_request_from_arrival_to_end(demo_run, export):
    """The structure that Google's "Trace Event Format" asks for; the trace processor itself is a download."""
    trace, run = json.loads(export(demo_run, "perfetto")), Run(demo_run)
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted(names.values()) == sorted(run.requests["request_id"])
    tracks = {}
    for event in events:
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 <= event["dur"]
            tracks.setdefault(names[event["tid"]], []).append(event)
        if event["ph"] == "C":
            assert isinstance(event["args"]["value"], int | float)
    requests = run.requests
    for row, request in enumerate(requests["request_id"]):
        track = tracks[request]
        for before, after in pairwise(track):  # slices of a track must not overlap
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3, request
        assert track[0]["name"] == "queued"
        assert track[0]["ts"] * 1000 == pytest.approx(requests["arrival_ns"][row])
        assert (track[-1]["ts"] + track[-1]["dur"]) * 1000 == pytest.approx(requests["finish_ns"][row])
        kinds = Counter(event["name"] for event in track)
        assert set(kinds) <= {"queued", "prefill", "decode", "preempted"}
        assert kinds["preempted"] == requests["preemptions"][row]
        assert sum(event["args"].get("output_tokens", 0) for event in track) == requests["output_tokens"][row]
        assert track[1]["args"]["hit_tokens"] == requests["hit_tokens"][row]
    counters = Counter(event["name"] for event in events if event["ph"] == "C")
    assert set(counters) == {"KV cache usage (%)", "free blocks", "running requests", "waiting requests"}


def test_prometheus_text_is_what_its_parser_reads_under_names_of_vllm(demo_run, export):
    run = Run(demo_run)
    families = {family.name: family for family in text_string_to_metric_families(export(demo_run, "prometheus"))}
    values = {}
    for name, family in families.items():
        known = VLLM_METRICS.get(name) or VLLM_METRICS[f"{name}_total"]
        assert family.type == known["type"], name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} <= set(known["labels"]), name
            if name != "vllm:cache_config_info":
                assert set(sample.labels) - {"le"} == set(known["labels"]), name
                values[sample.name, *sample.labels.values()] = sample.value
        if family.type == "histogram":
            bounds = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
            limit = run.configuration["engine"]["max_model_len"]
            ends_at_limit = known["buckets"][-2] == "100000.0"
            wanted = [bound for bound in known["buckets"] if not ends_at_limit or float(bound) in (*range(limit), inf)]
            assert bounds == wanted, name
            counts = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            assert counts == sorted(counts)
            assert counts[-1] == next(s.value for s in family.samples if s.name.endswith("_count"))
    model = run.configuration["model"]
    summary = run.summary
    assert {"vllm:kv_block_lifetime_seconds", "vllm:kv_block_reuse_gap_seconds"} < set(families)
    for key in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"):
        assert values[f"vllm:{key}_total", "0", model] == summary[key]
    ttft_sum = values["vllm:time_to_first_token_seconds_sum", "0", model]
    assert ttft_sum / summary["completed"] * 1000 == pytest.approx(summary["mean_ttft_ms"])
    itl_sum, itl_count = (values[f"vllm:inter_token_latency_seconds_{key}", "0", model] for key in ("sum", "count"))
    assert itl_sum / itl_count * 1000 == pytest.approx(summary["mean_itl_ms"])


def test_the_bench_result_has_what_its_statistics_are_made_of(demo_run, export):
    result, summary = json.loads(export(demo_run, "vllm-bench"), parse_constant=pytest.fail), Run(demo_run).summary
    assert {key: result[key] for key in summary} == summary
    assert "date" in result
    lists = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    assert {len(result[name]) for name in lists} == {summary["num_prompts"]}
    assert sum(result["input_lens"]) == summary["total_input_tokens"]
    assert sum(result["output_lens"]) == summary["total_output_tokens"]
    assert np.mean(result["ttfts"]) * 1000 == pytest.approx(summary["mean_ttft_ms"])
    pauses = np.concatenate(result["itls"]) * 1000
    assert pauses.mean() == pytest.approx(summary["mean_itl_ms"])
    assert np.percentile(pauses, 99) == pytest.approx(summary["p99_itl_ms"])
    tpot = [
        sum(itls) / (length - 1) for itls, length in zip(result["itls"], result["output_lens"], strict=True) if itls
    ]
    assert np.mean(tpot) * 1000 == pytest.approx(summary["mean_tpot_ms"])


def test_without_events_only_what_needs_them_is_missing(kvtwin, mooncake, export, tmp_path):
    assert kvtwin("replay", mooncake(), *SMALL_SERVER, "--out", tmp_path / "run").code == 0
    assert "itls" not in json.loads(export(tmp_path / "run", "vllm-bench"))
    assert "inter_token_latency" not in export(tmp_path / "run", "prometheus")
    (tmp_path / "perfetto").write_text("before")
    outcome = kvtwin("export", tmp_path / "run", "--to", "perfetto", "--out", tmp_path / "perfetto")
    outcome.complains("run: has no events.parquet", "--events")
    assert (tmp_path / "perfetto").read_text() == "before"
    assert not list(tmp_path.glob(".*"))


def test_refused_requests_are_in_the_result_with_their_reason(kvtwin, native, export, tmp_path):
    trace = native({}, {"lora": "adapter"})
    assert kvtwin("replay", trace, *SMALL_SERVER, "--events", "--out", tmp_path / "run").code == 0
    result = json.loads(export(tmp_path / "run", "vllm-bench"))
    assert result["errors"][0] == ""
    assert "adapter" in result["errors"][1]
    assert result["itls"][1] == []
    assert result["output_lens"] == [3, 0]


def test_bad_input(kvtwin, mooncake, demo_run, tmp_path):
    replay = ("replay", mooncake(), *SMALL_SERVER)
    kvtwin(*replay, "--events").complains("--events: needs --out")
    kvtwin(*replay, "--kv-events").complains("--kv-events: needs --out")
    kvtwin(*replay, "--kv-events", "--no-enable-prefix-caching", "--out", tmp_path / "x").complains("--kv-events")
    kvtwin(*replay, "--kv-events", "--allocator", "contiguous-max", "--out", tmp_path / "x").complains("--kv-events")
    (tmp_path / "spec.yaml").write_text("trace: demo\noptions: {events: true}\naxes: {block-size: [16]}\n")
    kvtwin("sweep", tmp_path / "spec.yaml").complains("--events", "single replay")
    kvtwin("export", tmp_path, "--to", "perfetto", "--out", tmp_path / "x").complains("not the folder of a run")
    kvtwin("export", demo_run, "--to", "csv", "--out", tmp_path / "x").complains("--to", "perfetto")
    kvtwin("export", demo_run, "--to", "perfetto").complains("--out")
    kvtwin("export", demo_run, "--to", "perfetto", "--out", tmp_path / "a" / "b").complains("--out", "a/b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spec.yaml", "trace.jsonl"]


def test_damaged_events_are_named(kvtwin, demo_run, tmp_path):
    broken = tmp_path / "run"
    broken.mkdir()
    for path in demo_run.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "events.parquet").write_bytes(b"PAR1 junk")
    kvtwin("export", broken, "--to", "perfetto", "--out", tmp_path / "x").complains("events.parquet: not a table")
    (broken / "events.parquet").write_bytes((demo_run / "steps.parquet").read_bytes())
    kvtwin("export", broken, "--to", "perfetto", "--out", tmp_path / "x").complains("events.parquet: not the events")
