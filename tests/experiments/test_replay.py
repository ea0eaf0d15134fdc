"""``kvtwin replay``: what is sent, what is refused, what is printed and kept."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from kvtwin.experiments.runs.text import WIDTH
from tests.experiments.conftest import SMALL_SERVER, mooncake_row, small_server, tokens

BENCH_KEYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
]
BENCH_KEYS += [f"{statistic}_{name}_ms" for statistic in ("mean", "median", "std", "p99") for name in ("ttft", "tpot")]
BENCH_KEYS += [f"{statistic}_{name}_ms" for statistic in ("mean", "median", "std", "p99") for name in ("itl", "e2el")]
CACHE_KEYS = [
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "num_evictions",
    "num_gpu_blocks",
    "steps",
    "phantom_hit_tokens",
    "rejected",
]
BENCH_LINES = """\
============ Serving Benchmark Result ============
Successful requests:
Failed requests:
Request rate configured (RPS):
Benchmark duration (s):
Total input tokens:
Total generated tokens:
Request throughput (req/s):
Output token throughput (tok/s):
Peak output token throughput (tok/s):
Peak concurrent requests:
Total token throughput (tok/s):
---------------Time to First Token----------------
Mean TTFT (ms):
Median TTFT (ms):
P99 TTFT (ms):
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):
Median TPOT (ms):
P99 TPOT (ms):
---------------Inter-token Latency----------------
Mean ITL (ms):
Median ITL (ms):
P99 ITL (ms):
----------------End-to-end Latency----------------
Mean E2EL (ms):
Median E2EL (ms):
P99 E2EL (ms):
""".splitlines()


# ---------------------------------------------------------------- what is printed


def test_the_text_is_laid_out_as_vllms(kvtwin, mooncake):
    outcome = kvtwin("replay", mooncake(), *small_server("--step-time", "roofline"))
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert "models vLLM 0.33.0" in lines[0]
    start = lines.index(BENCH_LINES[0])
    for line, wanted in zip(lines[start:], BENCH_LINES, strict=False):
        if wanted[0] in "=-":
            assert line == wanted
            assert len(line) == WIDTH
        else:
            assert line.startswith(f"{wanted:<40} ")
            float(line[41:])
    assert lines[start + len(BENCH_LINES)].strip("- ") == "KV Cache (vLLM 0.33.0)"


def test_lines_that_vllm_prints_only_when_asked(kvtwin, mooncake):
    options = ["--max-concurrency", "2", "--goodput", "ttft:1e9", "--percentile-metrics", "e2el"]
    out = kvtwin("replay", mooncake(), *SMALL_SERVER, *options, "--metric-percentiles", "50,99.9").out
    for line in ("Maximum request concurrency:             2", "Request goodput (req/s): ", "P50 E2EL", "P99.9 E2EL"):
        assert line in out
    for line in ("Request rate configured", "TTFT", "P99 "):
        assert line not in out


def test_json_has_vllms_keys_and_the_caches(kvtwin, mooncake):
    outcome = kvtwin("replay", mooncake(), *SMALL_SERVER, "--json", "--max-concurrency", "3")
    summary = json.loads(outcome.out, parse_constant=pytest.fail)
    assert list(summary)[:2] == ["date", "endpoint_type"]
    assert [key for key in BENCH_KEYS + CACHE_KEYS if key not in summary] == []
    assert (summary["request_rate"], summary["max_concurrency"], summary["burstiness"]) == ("inf", 3, 1.0)
    assert (summary["num_prompts"], summary["completed"], summary["failed"]) == (20, 20, 0)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (20_000, 100)
    assert (summary["num_gpu_blocks"], summary["vllm_version"]) == (2000, "0.33.0")
    assert (summary["prefix_cache_queries"], summary["prefix_cache_hits"]) == (20_000, 19 * 512)
    assert summary["prefix_cache_block_hit_rate"] == 19 * 32 / (20 * 62)
    assert summary["request_hit_rate"] == 19 / 20
    assert all(isinstance(summary[key], int) for key in CACHE_KEYS)


def test_concurrency_at_the_lengths_of_the_trace(kvtwin, summary_of, write):
    """Blocks of a request of that length, rounded up, in a pool of 2,000."""
    trace = write(*(mooncake_row(i, input_length=100 * i + 90, hash_ids=None, output_length=10) for i in range(10)))
    summary = summary_of(trace)
    lengths = 100 * np.arange(1, 11)
    assert (summary["mean_request_tokens"], summary["p95_request_tokens"]) == (550, np.percentile(lengths, 95))
    assert summary["max_concurrency_at_max_model_len"] == 2000 / 256
    assert summary["max_concurrency_at_mean_length"] == 2000 / -(-550 // 16)
    assert summary["max_concurrency_at_p95_length"] == 2000 / -(-955 // 16)
    text = kvtwin("replay", trace, *SMALL_SERVER).out
    assert "Maximum concurrency for 4,096 tokens per request: 7.81x" in text
    assert "57.14x at the mean of 550 tokens, 33.33x at p95, 955 tokens" in text
    options = ["size", "--model", "Llama-3.1-8B", *SMALL_SERVER[:4], "--trace", trace]
    assert "Maximum concurrency for the trace's p95 of 955 tokens per request: 33.33x" in kvtwin(*options).out
    assert json.loads(kvtwin(*options, "--json").out)["max_concurrency_at_mean_length"] == 2000 / 35


# ---------------------------------------------------------------- latencies


@pytest.fixture
def recorded(kvtwin, native, tmp_path):
    """A small run in a tight pool, as its summary and its table of requests."""
    rng = np.random.default_rng(0)
    rows = [
        tokens(*map(int, rng.integers(9, size=rng.integers(1, 300))), arrival_ns=int(t), output_tokens=int(n))
        for t, n in zip(np.sort(rng.integers(10**9, size=60)), rng.choice([1, 2, 20, 60], size=60), strict=True)
    ]
    options = ["--num-gpu-blocks-override", "60", "--max-model-len", "400", "--gpu", "l4", "--goodput", "ttft:800"]
    options += ["--metric-percentiles", "0,12.5,50,99,100", "--out", tmp_path / "run"]
    assert kvtwin("replay", native(*rows), *options).code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    return summary, pyarrow.parquet.read_table(tmp_path / "run" / "requests.parquet").to_pandas()


def test_latencies_are_numpys_of_the_requests(recorded):
    summary, requests = recorded
    ttft = (requests.first_token_ns - requests.arrival_ns) / 1e6
    e2el = (requests.finish_ns - requests.arrival_ns) / 1e6
    several = requests.output_tokens > 1
    tpot = ((e2el - ttft) / (requests.output_tokens - 1))[several]
    assert 0 < several.sum() < len(requests)
    for name, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el)):
        assert summary[f"mean_{name}_ms"] == pytest.approx(np.mean(values), rel=1e-12)
        assert summary[f"std_{name}_ms"] == pytest.approx(np.std(values), rel=1e-9)
        assert summary[f"median_{name}_ms"] == pytest.approx(np.median(values), rel=1e-12)
        for percent in ("0", "12.5", "50", "99", "100"):
            wanted = np.percentile(values, float(percent))
            assert summary[f"p{percent}_{name}_ms"] == pytest.approx(wanted, rel=1e-12)
    num_gaps = (requests.output_tokens - 1).sum()
    assert summary["mean_itl_ms"] == pytest.approx((e2el - ttft).sum() / num_gaps, rel=1e-9)


def test_goodput_counts_requests_within_every_limit(recorded):
    summary, requests = recorded
    good = ((requests.first_token_ns - requests.arrival_ns) <= 800_000_000).sum()
    assert 0 < good < len(requests)
    assert summary["request_goodput"] == good / summary["duration"]


def test_sums_agree_with_the_tables(recorded):
    summary, requests = recorded
    assert summary["num_preemptions"] == requests.preemptions.sum() > 0
    assert 0 < summary["first_preemption_s"] < summary["duration"]
    assert summary["prefix_cache_hits"] == requests.hit_tokens.sum()
    assert summary["prefix_cache_queries"] == requests.prompt_tokens.sum() == summary["total_input_tokens"]
    assert summary["recomputed_tokens"] > 0
    assert summary["num_evictions"] > 0
    assert summary["duration"] == (requests.finish_ns.max() - requests.arrival_ns.min()) / 1e9


# ---------------------------------------------------------------- what is refused


def test_rows_that_cannot_be_served_are_counted_by_reason(kvtwin, summary_of, native):
    rows = [{"output_tokens": 0}, {}, {"prompt_tokens": 4096}, {"prompt_tokens": 4095}, {"output_tokens": 0}]
    trace = native(*rows, {"lora": "a"})
    summary = summary_of(trace)
    reasons = {"zero output": 2, "prompt >= max_model_len": 1, "LoRA is not enabled": 1}
    assert summary["rejected_by_reason"] == reasons
    assert (summary["completed"], summary["failed"], summary["rejected"]) == (2, 4, 4)
    outcome = kvtwin("replay", trace, *SMALL_SERVER)
    assert outcome.code == 0
    for reason, count in reasons.items():
        assert f"  {reason + ':':<38} {count}\n" in outcome.out
    assert f"* rejected, zero output: first {trace}:2\n" in outcome.out
    kvtwin("replay", trace, *SMALL_SERVER, "--strict").complains(f"{trace}:2: zero output")


def test_rejected_requests_are_in_no_denominator(summary_of, native):
    served, refused = tokens(*range(64)), tokens(*range(64), lora="a")
    summary = summary_of(native(served, refused, served, refused))
    assert summary["prompt_full_blocks"] == 8
    assert (summary["prefix_cache_hit_rate"], summary["prefix_cache_block_hit_rate"]) == (48 / 128, 3 / 8)
    assert summary["request_hit_rate"] == 1 / 2


def test_strict_stops_at_what_the_engine_gives_up(kvtwin, mooncake):
    """Found when the request's turn comes, not when it arrives."""
    options = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-num-scheduled-tokens", "500"]
    outcome = kvtwin("replay", mooncake(), *SMALL_SERVER, *options)
    assert outcome.code == 1
    assert "never fits:                            20\n" in outcome.out
    kvtwin("replay", mooncake(), *SMALL_SERVER, *options, "--strict").complains("trace.jsonl:1: ", "never fits")


def test_strict_vllm_hangs_and_kvtwin_says_so(kvtwin, mooncake):
    options = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-num-scheduled-tokens", "500"]
    outcome = kvtwin("replay", mooncake(2), *SMALL_SERVER, *options, "--vllm-strict")
    assert outcome.code == 1
    assert "* no progress: 2 requests are left" in outcome.out
    assert "Unfinished requests:                     2\n" in outcome.out


def test_a_server_that_hangs_after_some_requests_is_no_success(kvtwin, native):
    options = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-num-scheduled-tokens", "500"]
    trace = native({}, {"prompt_tokens": 600}, {})
    assert kvtwin("replay", trace, *SMALL_SERVER, *options).code == 0  # one is rejected, the others are served
    outcome = kvtwin("replay", trace, *SMALL_SERVER, *options, "--vllm-strict")
    assert outcome.code == 1
    assert "Successful requests:                     1\n" in outcome.out
    assert "* no progress: 2 requests are left" in outcome.out


@pytest.mark.parametrize("options", [(), ("--max-concurrency", "1"), ("--max-concurrency", "1", "--rate-scale", "2")])
def test_every_request_of_a_hung_run_is_counted_also_those_never_sent(kvtwin, native, options):
    big = {"prompt_tokens": 600, "session": "s"}
    trace = native({}, big, *[{"session": "s", "think_time_ns": 5}] * 3, {"output_tokens": 0}, {})
    budget = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096", "--max-num-scheduled-tokens", "500"]
    outcome = kvtwin("replay", trace, *SMALL_SERVER, *budget, *options, "--vllm-strict", "--json")
    summary = json.loads(outcome.out)
    refused = 0 if options else 1
    counts = [summary[name] for name in ("completed", "rejected", "unfinished", "failed")]
    assert counts == [1, refused, 6 - refused, 6]
    assert summary["verdicts"][1].startswith(f"no progress: {6 - refused} requests are left")


def test_a_run_that_completes_nothing_is_no_success(kvtwin, native):
    outcome = kvtwin("replay", native({"output_tokens": 0}, {"prompt_tokens": 5000}), *SMALL_SERVER)
    assert outcome.code == 1
    assert "Successful requests:                     0\n" in outcome.out
    assert "nan" not in outcome.out


def test_nothing_completed_is_still_json(summary_of, native):
    summary = summary_of(native({"output_tokens": 0}))
    assert (summary["completed"], summary["mean_ttft_ms"], summary["mean_request_tokens"]) == (0, 0.0, None)


# ---------------------------------------------------------------- what is sent


def arrivals_s(kvtwin, trace, tmp_path, *options):
    """When requests reached the server, in seconds, in order of arrival."""
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    assert kvtwin("replay", trace, *SMALL_SERVER, *options, "--out", folder).code == 0
    table = pyarrow.parquet.read_table(folder / "requests.parquet")
    return sorted(ns / 1e9 for ns in table["arrival_ns"].to_pylist())


def test_shaping_the_load(kvtwin, mooncake, tmp_path):
    trace = mooncake(10)

    def arrivals(*options):
        return arrivals_s(kvtwin, trace, tmp_path, *options)

    as_traced = [index / 10 for index in range(10)]
    assert arrivals() == as_traced
    assert arrivals("--num-prompts", "3") == as_traced[:3]
    assert arrivals("--num-prompts", "30") == as_traced
    assert arrivals("--rate-scale", "4") == [time / 4 for time in as_traced]
    assert arrivals("--rate-scale", "0.5", "--max-concurrency", "4") == [time * 2 for time in as_traced]
    assert arrivals("--max-concurrency", "2") == [0] * 10
    assert arrivals("--request-rate", "inf") == [0] * 10
    drawn = arrivals("--request-rate", "5", "--num-prompts", "4")
    assert drawn[-1] == pytest.approx(4 / 5)
    assert drawn == arrivals("--request-rate", "5", "--num-prompts", "4", "--seed", "0")
    assert drawn != arrivals("--request-rate", "5", "--num-prompts", "4", "--seed", "1")
    assert drawn != arrivals("--request-rate", "5", "--num-prompts", "4", "--burstiness", "0.2")


def test_playing_sessions(kvtwin, native, tmp_path):
    """Two sessions of three turns, 100 s of thinking between them; the device takes no time."""
    turns = [{"session": str(turn % 2), "arrival_ns": turn * 10**9} for turn in range(6)]
    trace = native(*turns[:2], *({"think_time_ns": 100 * 10**9} | turn for turn in turns[2:]))

    def arrivals(*options):
        return arrivals_s(kvtwin, trace, tmp_path, *options)

    assert arrivals() == [0, 1, 100, 101, 200, 201]
    assert arrivals("--session-rate", "inf") == [0, 0, 100, 100, 200, 200]
    assert arrivals("--session-rate", "inf", "--think-time", "7") == [0, 0, 7, 7, 14, 14]
    assert arrivals("--think-time", "0") == [0, 0, 0, 1, 1, 1]
    assert arrivals("--think-time-scale", "0.5") == [0, 1, 50, 51, 100, 101]
    assert arrivals("--think-time-cap", "20", "--think-time-scale", "0.5") == [0, 1, 20, 21, 40, 41]
    assert arrivals("--concurrent-sessions", "1") == [0, 100, 200, 200, 300, 400]
    assert arrivals("--concurrent-sessions", "2", "--num-prompts", "3") == [0, 0, 100]
    first, *later = arrivals("--session-rate", "0.1", "--num-sessions", "1", "--seed", "1")
    assert first > 0
    assert later == [pytest.approx(first + 100), pytest.approx(first + 200)]


WEKA_ROW = {
    "id": "s", "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": t, "type": "n", "model": "m", "in": 64 * ids, "out": 5, "hash_ids": list(range(ids)), "api_time": 1.0}
        for t, ids in ((0, 10), (30, 70), (60, 12))
    ],
}  # fmt: skip


def test_sessions_without_start_need_a_rate_and_refused_turns_do_not_stop_them(kvtwin, summary_of, write):
    trace = write(WEKA_ROW, WEKA_ROW | {"id": "t"})
    kvtwin("replay", trace, *SMALL_SERVER).complains("--session-rate: needed", "(weka) has no start times")
    for options in (["--session-rate", "0.1"], ["--concurrent-sessions", "1"], ["--max-concurrency", "1"]):
        summary = summary_of(trace, *options)
        assert (summary["completed"], summary["rejected_by_reason"]) == (4, {"prompt >= max_model_len": 2})
        assert summary["prefix_cache_hits"] == 2 * 640  # of the last turns; the session's first computes the 640


def test_a_closed_loop_is_never_above_its_limit(summary_of, mooncake):
    summary = summary_of(mooncake(), "--max-concurrency", "3", "--step-time", "linear")
    assert summary["max_concurrent_requests"] == 3
    assert summary["completed"] == 20


def test_unsorted_rows_are_sorted_and_counted(kvtwin, summary_of, write):
    rows = [mooncake_row(index) for index in (3, 1, 2, 2, 0)]
    trace = write(*rows)
    assert summary_of(trace)["num_unsorted"] == 4
    assert "5 requests, 4 out of order (sorted)" in kvtwin("replay", trace, *SMALL_SERVER).out


@pytest.mark.parametrize("options", [{"newline": "\r\n"}, {"encoding": "utf-8-sig"}, {"end": ""}], ids=str)
def test_line_ends_and_marks_change_nothing(summary_of, write, mooncake, options):
    plain = summary_of(mooncake(3))
    odd = summary_of(write(*(mooncake_row(index) for index in range(3)), name="odd.jsonl", **options))
    assert plain | {"date": ""} == odd | {"date": ""}


def test_timed_trace_settings(summary_of, write, kvtwin):
    rows = [{"t": i / 2, "in": 40, "out": 2, "ids": ["a", "b", f"c{i}"]} for i in range(3)]
    labels = ["timestamp", "t", "input-length", "in", "output-length", "out", "hash-ids", "ids"]
    options = [
        word
        for name, key in zip(labels[::2], labels[1::2], strict=True)
        for word in (f"--timed-trace-label-{name}", key)
    ]
    options += ["--timed-trace-chunk-hash-size", "16", "--timed-trace-sec-multiplier", "1"]
    summary = summary_of(write(*rows), *options)
    assert (summary["request_rate"], summary["prefix_cache_hits"]) == (3, 64)
    inspected = json.loads(kvtwin("trace", "inspect", write(*rows), *options, "--json").out)
    assert (inspected["span_s"], inspected["sharing"]["hit_tokens"]) == (1, 64)


# ---------------------------------------------------------------- what is kept


def test_a_run_repeats_to_the_byte(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    for name in ("first", "second"):
        options = ["--step-time", "roofline", "--request-rate", "7", "--out", tmp_path / name]
        assert kvtwin("replay", trace, *small_server(*options)).code == 0
    first, second = tmp_path / "first", tmp_path / "second"
    names = ["config.yaml", "machine.json", "requests.parquet", "steps.parquet", "summary.json"]
    assert sorted(path.name for path in first.iterdir()) == names
    for name in names:
        if name != "machine.json":
            assert (first / name).read_bytes() == (second / name).read_bytes(), name
    config = yaml.safe_load((first / "config.yaml").read_text())
    assert (config["vllm_version"], config["engine"]["num_blocks"], config["options"]["request_rate"]) == (
        "0.33.0",
        2000,
        7,
    )
    summary = json.loads((first / "summary.json").read_text(), parse_constant=pytest.fail)
    steps = pyarrow.parquet.read_table(first / "steps.parquet").to_pandas()
    assert (summary["steps"], summary["vllm_version"]) == (len(steps), "0.33.0")
    assert summary["kv_cache_usage_peak"] == 1 - steps.free_blocks.min() / 1999
    busy_ns = steps.end_ns - steps.start_ns
    used = 1 - steps.free_blocks / 1999
    assert summary["kv_cache_usage_mean"] == pytest.approx((used * busy_ns).sum() / busy_ns.sum())


def test_nothing_is_overwritten_and_nothing_tried_in_vain(kvtwin, mooncake, tmp_path):
    trace = mooncake()
    (tmp_path / "full").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("full", "dangling", "trace.jsonl", "trace.jsonl/run", "a/b", "x" * 300):
        kvtwin("replay", trace, *SMALL_SERVER, "--out", tmp_path / name).complains(f"--out {tmp_path / name}")
    kvtwin("replay", trace, *SMALL_SERVER, "--out", "/proc/run").complains("--out /proc/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "full", "trace.jsonl"]


def test_what_a_killed_run_left_does_not_matter(kvtwin, mooncake, tmp_path):
    (tmp_path / ".run.partial-1").mkdir()
    (tmp_path / ".run.partial-1" / "junk").write_text("")
    assert kvtwin("replay", mooncake(), *SMALL_SERVER, "--out", tmp_path / "run").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.jsonl"]
    assert "junk" not in [path.name for path in (tmp_path / "run").iterdir()]


def test_two_runs_into_one_folder_do_not_mix(kvtwin, script, mooncake, tmp_path, monkeypatch):
    """Both start while the name is free; the one that is done first has it, whole."""
    trace, folder, codes = mooncake(), tmp_path / "run", []
    write = Path.write_bytes

    def overtaken(path, content):
        if not codes:
            other = script("replay", trace, *SMALL_SERVER, "--num-prompts", "5", "--out", folder)
            codes.append((other.communicate(), other.returncode)[1])
        write(path, content)

    monkeypatch.setattr(Path, "write_bytes", overtaken)
    outcome = kvtwin("replay", trace, *SMALL_SERVER, "--out", folder)
    assert (outcome.code, codes) == (2, [0])
    assert "Hit rate" in outcome.out  # what was computed is told
    assert outcome.err == f"kvtwin: error: --out {folder}: already exists; name a new folder\n"
    assert json.loads((folder / "summary.json").read_text())["num_prompts"] == 5
    assert len(pyarrow.parquet.read_table(folder / "requests.parquet")) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.jsonl"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_folder_that_cannot_be_finished_is_not_there(kvtwin, mooncake, tmp_path, monkeypatch, error):
    def fail(*_args):
        raise error

    trace = mooncake()
    monkeypatch.setattr(Path, "write_bytes", fail)
    outcome = kvtwin("replay", trace, *SMALL_SERVER, "--out", tmp_path / "run")
    assert outcome.code == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert "Hit rate" in outcome.out
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


# ---------------------------------------------------------------- other commands


@pytest.mark.parametrize(
    "name",
    [
        "azure/AzureLLMInferenceTrace_code.csv.gz",
        "dynamo/mooncake_tiny.jsonl",
        "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz",
    ],
)
def test_public_traces_are_inspected_and_replayed(kvtwin, public_trace, name):
    path = public_trace(name)
    facts = json.loads(kvtwin("trace", "inspect", path, "--json").out, parse_constant=pytest.fail)
    assert facts["num_requests"] > 0
    assert facts["vllm_version"] == "0.33.0"
    outcome = kvtwin("replay", path, "--num-prompts", "50", "--max-model-len", "131072", "--json")
    summary = json.loads(outcome.out, parse_constant=pytest.fail)
    assert summary["completed"] + summary["rejected"] == summary["num_prompts"]
    assert (summary["prefix_cache_hits"] is None) == (facts["sharing"] is None) == name.startswith("azure")


def test_a_generated_trace_is_replayed(kvtwin, summary_of, tmp_path):
    path = tmp_path / "chat.jsonl.gz"
    options = ["--num-prompts", "30", "--turns", "3", "--think-time-s", "0", "--output-tokens", "20"]
    assert kvtwin("trace", "generate", path, *options).code == 0
    content = path.read_bytes()
    kvtwin("trace", "generate", path).complains("already exists")
    assert path.read_bytes() == content
    summary = summary_of(path, "--check")
    assert summary["completed"] == 30
    assert summary["request_hit_rate"] > 0.6
    assert summary["first_preemption_s"] is None


def test_the_demo_shows_hits_evictions_and_preemptions(kvtwin):
    outcome = kvtwin("demo")
    assert (outcome.code, outcome.err) == (0, "")
    assert "demo (bundled): 300 requests" in outcome.out
    for label in ("Evicted blocks:", "Preemptions (requests):", "Recomputed tokens:"):
        (line,) = [line for line in outcome.out.splitlines() if line.startswith(label)]
        assert line.split()[-1 if label[0] == "E" else 2] != "0"
    assert "\n  first preemption after (s):" in outcome.out
