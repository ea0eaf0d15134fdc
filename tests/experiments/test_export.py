"""``kvtwin export`` and the events of a replay: what other tools read out of a run is what happened in it."""

import calendar
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kvtwin.experiments.commands.demo import DEMO_OPTIONS
from kvtwin.experiments.exports.sampled import Moments
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
    events = json.loads(export(tmp_path / "run", "perfetto"))["traceEvents"]
    starts = [event["ts"] for event in events if event["name"] == "prefill"]
    assert starts == pytest.approx([0, 10**7, 2 * 10**7], abs=1e-3)


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


@pytest.fixture(scope="module")
def openmetrics(demo_run):
    """The families of the demo's metrics by name, as prometheus_client's parser of OpenMetrics reads them."""
    from kvtwin.experiments.command_line import main

    path = demo_run.parent / "run.om"
    assert main(["export", str(demo_run), "--to", "prometheus", "--out", str(path)]) == 0
    return {family.name: family for family in text_string_to_metric_families(path.read_text())}


def known_metric(name):
    """What vLLM says of the metric that a series belongs to, and the metric's name."""
    for base in (name, f"{name}_total", re.sub("_(bucket|count|sum)$", "", name)):
        if base in VLLM_METRICS:
            return base, VLLM_METRICS[base]
    raise AssertionError(name)


def at_the_end(openmetrics):
    """The last value of every series."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in openmetrics.values()
        for sample in family.samples
    }


def test_metrics_are_series_under_names_of_vllm(demo_run, openmetrics):
    run = Run(demo_run)
    start = calendar.timegm(time.strptime(run.machine["date"], "%Y%m%d-%H%M%S"))
    end = int(run.steps["end_ns"].max()) / 1e9
    buckets = {}
    for name, family in openmetrics.items():
        metric, known = known_metric(name)
        assert family.type == ("unknown" if known["type"] == "histogram" else known["type"]), name
        series = {}
        for sample in family.samples:
            labels = set(sample.labels) - {"le"}
            assert (
                labels <= set(known["labels"]) if name == "vllm:cache_config_info" else labels == set(known["labels"])
            )
            series.setdefault(tuple(sorted(sample.labels.items())), []).append(sample)
            if "le" in sample.labels:
                buckets.setdefault(metric, {})[sample.labels["le"]] = sample.value
        for samples in series.values():
            times = [float(sample.timestamp) for sample in samples]
            if len(times) > 1:
                assert times == [start + second for second in range(len(times))], name
            assert end <= times[-1] - start < end + 1
            if known["type"] != "gauge":
                values = [sample.value for sample in samples]
                assert values == sorted(values)
    for metric, counts in buckets.items():
        wanted = VLLM_METRICS[metric]["buckets"]
        limit = run.configuration["engine"]["max_model_len"]
        if wanted[-2] == "100000.0":
            wanted = [bound for bound in wanted if float(bound) in (*range(limit), inf)]
        assert list(counts) == wanted, metric
        assert list(counts.values()) == sorted(counts.values())


def test_metrics_end_as_the_summary_says_and_tell_how_they_came_there(demo_run, openmetrics):
    run = Run(demo_run)
    summary, steps = run.summary, run.steps
    labels = (("engine", "0"), ("model_name", run.configuration["model"]))
    values = at_the_end(openmetrics)
    for key in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"):
        assert values[f"vllm:{key}_total", *labels] == summary[key]
    assert values["vllm:generation_tokens_total", *labels] == summary["total_output_tokens"]
    for metric, mean in (("time_to_first_token", "mean_ttft_ms"), ("inter_token_latency", "mean_itl_ms")):
        total, count = (values[f"vllm:{metric}_seconds_{kind}", *labels] for kind in ("sum", "count"))
        assert total / count * 1000 == pytest.approx(summary[mean])
    assert values["vllm:kv_block_reuse_gap_seconds_count", *labels] > 0
    for second in (0, 10, 30, 60):
        now = steps["scheduled_ns"] <= second * 10**9
        running = openmetrics["vllm:num_requests_running"].samples[second].value
        assert running == (steps["running"][now][-1] if now.any() else 0)
        assert openmetrics["vllm:num_preemptions"].samples[second].value == steps["preempted"][now].sum()
        done = steps["end_ns"] <= second * 10**9
        outputs = sum(sum(row["output_tokens"]) for row in events_of(demo_run)[: int(done.sum())])
        assert openmetrics["vllm:generation_tokens"].samples[second].value == outputs
        first = run.requests["first_token_ns"]
        assert (
            openmetrics["vllm:time_to_first_token_seconds_count"].samples[second].value
            == ((first >= 0) & (first <= second * 10**9)).sum()
        )


def test_prometheus_itself_takes_the_file(demo_run, openmetrics, tmp_path):
    """All its series, with all their samples."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("there is no promtool (Debian's package prometheus has it)")
    words = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(demo_run.parent / "run.om"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (block,) = tmp_path.glob("*/meta.json")
    found = json.loads(block.read_text())["stats"]
    samples = [
        (sample.name, *sorted(sample.labels.items())) for each in openmetrics.values() for sample in each.samples
    ]
    assert (found["numSamples"], found["numSeries"]) == (len(samples), len(set(samples)))


def test_long_runs_have_fewer_samples_not_longer_files():
    for seconds, interval, count in (
        (0.5, 1, 2),
        (299.5, 1, 301),
        (301, 2, 152),
        (90_000, 300, 301),
        (10**9, 86_400, 11_576),
    ):
        steps = {"end_ns": np.array([int(seconds * 10**9)])}
        run = SimpleNamespace(replicas=[], steps=steps, requests={"finish_ns": steps["end_ns"]}, machine={})
        moments = Moments.of(run)
        assert (moments.interval_s, moments.count, moments.timestamps[0]) == (interval, count, 0)


GRAFANA = json.loads((Path(__file__).parent / "data" / "grafana_schema.json").read_text())["objects"]
GRAFANA_TYPES = {"str": str, "int": int, "number": int | float, "bool": bool, "list": list, "dict": dict, "any": object}


def check_object(kind, found):
    """Assert that ``found`` has every field that the schema's ``kind`` requires, and no field that it lacks."""
    required, optional = GRAFANA[kind].values()
    assert set(required) <= set(found) <= {*required, *optional}, kind
    for name, value in found.items():
        asked = (required | optional)[name]
        if isinstance(asked, list):
            assert value in asked, (kind, name)
        else:
            assert isinstance(value, GRAFANA_TYPES[asked]), (kind, name)


def check_dashboard(dashboard):
    check_object("Dashboard", dashboard)
    check_object("Time", dashboard["time"])
    check_object("AnnotationContainer", dashboard["annotations"])
    check_object("Templating", dashboard["templating"])
    for variable in dashboard["templating"]["list"]:
        check_object("VariableModel", variable)
    for panel in dashboard["panels"]:
        check_object("Panel", panel)
        check_object("GridPos", panel["gridPos"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        check_object("FieldConfigSource", panel["fieldConfig"])
        check_object("FieldConfig", panel["fieldConfig"]["defaults"])
        assert panel["type"] == "timeseries"
        check_object("Options", panel["options"])
        check_object("VizLegendOptions", panel["options"]["legend"])
        check_object("VizTooltipOptions", panel["options"]["tooltip"])
        for asked in (panel, *panel["targets"]):
            check_object("DataSourceRef", asked["datasource"])
        for target in panel["targets"]:
            check_object("Dataquery", target)
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_a_dashboard_asks_for_what_is_exported(demo_run, export, openmetrics):
    dashboard = json.loads(export(demo_run, "grafana"))
    exported = {sample.name for family in openmetrics.values() for sample in family.samples}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            names = re.findall(r"vllm:\w+", target["expr"])
            assert names, target
            assert set(names) <= exported
            assert target["expr"].count("(") == target["expr"].count(")")
            assert "WINDOW" not in target["expr"]
    check_dashboard(dashboard)
    samples = openmetrics["vllm:num_requests_running"].samples
    times = [calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S.000Z")) for text in dashboard["time"].values()]
    assert times == [float(samples[0].timestamp), float(samples[-1].timestamp)]


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
    outcome = kvtwin("export", tmp_path / "run", "--to", "perfetto", "--out", tmp_path / "perfetto")
    outcome.complains("run: has no events.parquet", "--events")
    assert not (tmp_path / "perfetto").exists()
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name here")
def test_what_is_no_file_is_not_replaced(kvtwin, demo_run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for words in (("export", demo_run, "--to", "perfetto"), ("report", demo_run)):
        kvtwin(*words, "--out", tmp_path / "pipe").complains("pipe: already exists")
    assert (tmp_path / "pipe").is_fifo()
