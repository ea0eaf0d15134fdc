"""A calibration from the lines that a server prints; a simulated server stands for the real one."""

import numpy as np
import pytest
import yaml

import kvtwin as kv
from kvtwin.experiments.calibration.server import fit_to_server
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.server_log import read_server_log
from tests.experiments.conftest import drawn_requests

SERVER = {"model": "Llama-3.1-8B", "gpu": "rtx-4090", "max_num_seqs": 16, "max_model_len": 8192}
FACTOR = 1.3
MEMORY = "INFO 03-09 02:00:00 [worker.py:9] Available KV cache memory: 3.66 GiB\n"
LINE = (
    "(APIServer pid=1) INFO 03-09 02:{:02d}:{:02d} [loggers.py:271] Engine {:03d}: "
    "Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
    "Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: 12.5%, "
    "Prefix cache hit rate: 43.8%\n"
)


def line(second, prompt, generated, running, waiting, engine=0):
    return LINE.format(*divmod(second, 60), engine, prompt, generated, running, waiting)


def printed(run, start_s=0.6):
    """What vLLM would print each second of ``run``, whose first request comes ``start_s`` before the first line."""
    table = run.requests
    times = {
        name: table[f"{name}_ns"].to_numpy() / 1e9 for name in ("arrival", "first_scheduled", "first_token", "finish")
    }
    prompts, outputs = table.prompt_tokens.to_numpy(), table.output_tokens.to_numpy()
    text, before = "", np.zeros(2)
    for second in range(int(times["finish"].max()) + 2):
        now = second + start_s
        share = np.clip((now - times["first_token"]) / (times["finish"] - times["first_token"]), 0, 1)
        begun = times["first_token"] <= now
        so_far = np.array([prompts[begun].sum(), (begun * (1 + share * (outputs - 1))).sum()])
        running = ((times["first_scheduled"] <= now) & (now < times["finish"])).sum()
        waiting = ((times["arrival"] <= now) & (now < times["first_scheduled"])).sum()
        text += line(second, *(so_far - before), running, waiting)
        before = so_far
    return text


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The log of a server whose steps take 1.3 times as long, and what the server is."""
    folder = tmp_path_factory.mktemp("log")
    kv.write_workload(folder / "trace.jsonl", drawn_requests(40, 300_000_000, 2000, (20, 100)))
    truth = {"model": "adjusted", "base": "roofline", "decode_scale": FACTOR, "prefill_scale": FACTOR}
    (folder / "truth.yaml").write_text(yaml.safe_dump(truth))
    run = kv.replay(folder / "trace.jsonl", progress=False, step_time=str(folder / "truth.yaml"), **SERVER)
    (folder / "vllm.log").write_text(printed(run))
    write_server(folder, "server.yaml")
    return folder


def write_server(folder, name, **options):
    named = {option.replace("_", "-"): value for option, value in (SERVER | options).items()}
    (folder / name).write_text(yaml.safe_dump({"trace": str(folder / "trace.jsonl"), "options": named}))
    return folder / name


def test_the_factor_of_all_steps_is_found_again(logged):
    fit = fit_to_server(logged / "vllm.log", logged / "server.yaml")
    assert fit.adjustment.scales == pytest.approx((FACTOR, FACTOR, 0), rel=0.02)
    assert fit.adjustment.is_settled
    low, high = fit.adjustment.intervals[0]
    assert low <= fit.adjustment.scales.decode <= high <= 1.2 * low
    assert fit.data()["measured"]["lines"] >= 10
    text = "\n".join(fit.lines())
    assert "lines of its log" in text
    assert "most of the cache that was used: 12.5%, simulated " in text
    assert "the times of requests can (vllm bench serve --save-result --save-detailed)" in text


def test_the_size_of_the_cache_is_that_of_the_log(logged, kvtwin):
    log = logged / "sized.log"
    log.write_text(f"{MEMORY}INFO [kv] GPU KV cache size: 30,000 tokens\n{(logged / 'vllm.log').read_text()}")
    other = write_server(logged, "other.yaml", num_gpu_blocks_override=1000)
    kvtwin("calibrate", "--from", log, "--server", other).complains(
        "--num-gpu-blocks-override 1000: the server of", "had 1,875 (num_gpu_blocks)"
    )
    log.write_text(f"{MEMORY}INFO 'max_num_seqs': 8, x\n{(logged / 'vllm.log').read_text()}")
    kvtwin("calibrate", "--from", log, "--server", logged / "server.yaml").complains("--max-num-seqs 16", "had 8")


def test_a_log_of_other_requests_is_refused(logged):
    records = list(kv.open_workload(logged / "trace.jsonl"))[:20]
    (logged / "half").mkdir()
    kv.write_workload(logged / "half" / "trace.jsonl", records)
    with pytest.raises(UserError, match="output tokens, and the requests of the trace have"):
        fit_to_server(logged / "vllm.log", write_server(logged / "half", "server.yaml"))
    with pytest.raises(UserError, match="the requests of the trace have 0: give the log of these requests alone"):
        fit_to_server(logged / "vllm.log", write_server(logged, "short.yaml", max_model_len=64))
    (logged / "half" / "trace.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"^[^:]*trace\.jsonl:1: "):
        fit_to_server(logged / "vllm.log", logged / "half" / "server.yaml")


def test_lines_of_a_server_that_waits_for_requests_do_not_determine_its_steps(tmp_path):
    records = [
        kv.RequestRecord(request_id=str(i), arrival_ns=i * 3_000_000_000, prompt_tokens=50, output_tokens=3)
        for i in range(12)
    ]
    kv.write_workload(tmp_path / "trace.jsonl", records)
    run = kv.replay(tmp_path / "trace.jsonl", progress=False, **SERVER)
    (tmp_path / "vllm.log").write_text(printed(run))
    with pytest.raises(UserError, match=r"do not determine how long steps take .*: record requests with vllm bench"):
        fit_to_server(tmp_path / "vllm.log", write_server(tmp_path, "server.yaml"))


def test_lines_are_at_even_intervals_also_where_an_idle_server_prints_none(tmp_path):
    path = tmp_path / "vllm.log"
    seconds = [*range(0, 70, 10), *range(99, 140, 10)]
    path.write_text("".join(line(second, 5.0, 2.5, 3, 1) for second in seconds))
    log = read_server_log(path)
    assert log.interval_s == pytest.approx(10, rel=0.02)
    assert log.running.tolist() == [3.0] * 7 + [0.0] * 3 + [3.0] * 5
    assert log.generated_tokens.sum() == pytest.approx(12 * 25, rel=0.02)
    assert (log.peak_usage, log.hit_rate, log.start_up) == (0.125, pytest.approx(0.438), None)


def test_engines_are_added_up(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text("".join(line(second, 5.0, 2.0, 3, 1, engine) for second in range(12) for engine in (0, 1)))
    log = read_server_log(path)
    assert (log.running[0], log.generated_tokens[0]) == (6, pytest.approx(4))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected at least 10 lines .* got 0: set VLLM_LOG_STATS_INTERVAL=1"),
        ("".join(line(second, 0, 0, 0, 0) for second in range(20)), "of a busy server, got 0"),
        ("".join(line(0, 1, 1, 1, 0) for _ in range(20)), "got 1"),
        ("".join(line(second, 1, 1, 1, 0) for second in range(12) for _ in "ab"), "two lines of Engine 000 at 03-09"),
        (
            "".join(line(second, 1, 1, 1, 0) for second in [*range(20, 40), 10]),
            "a line at 03-09 02:00:10 stands behind a later one",
        ),
    ],
)
def test_what_is_no_such_log_is_named(tmp_path, text, complaint):
    (tmp_path / "vllm.log").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_server_log(tmp_path / "vllm.log")
    with pytest.raises(UserError, match="No such file"):
        read_server_log(tmp_path / "none.log")
