"""``kvtwin replay --data-parallel-size``: what is printed, kept and refused."""

import json
import shutil
import sys
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import pyarrow.parquet
import pytest
import yaml

import kvtwin as kv
from kvtwin.experiments.options.reading import command_words, read_options
from kvtwin.experiments.options.replay import ReplayCommandOptions, ReplayOptions
from kvtwin.experiments.runs.replicas import replay_replicas
from kvtwin.sim.cluster.router_names import ROUTER_NAMES
from kvtwin.sim.cluster.routers.registry import ROUTERS
from kvtwin.workloads.formats.in_memory import workload_of
from kvtwin.workloads.request_record import RequestRecord
from tests.experiments.conftest import SMALL_SERVER
from tests.parts import slow_but

CHATS = ("demo", "--num-prompts", "60", "--num-gpu-blocks-override", "400", "--max-model-len", "4096")
CHATS += ("--step-time", "linear")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run of two replicas, in its folder."""
    from kvtwin.experiments.command_line import main

    folder = tmp_path_factory.mktemp("replicas") / "run"
    assert main(["replay", *CHATS, "-dp", "2", "--router", "least-loaded", "--out", str(folder)]) == 0
    return folder


def table(path):
    return pyarrow.parquet.read_table(path).to_pydict()


def test_every_router_has_its_name_among_the_options():
    assert tuple(ROUTERS) == ROUTER_NAMES


# ---------------------------------------------------------------- what is printed and kept


def test_the_text_has_a_row_per_replica(kvtwin):
    outcome = kvtwin("replay", *CHATS, "--data-parallel-size", "3", "--router", "round-robin")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert "data    parallel over 3 equal replicas, router round-robin" in lines
    start = next(index for index, line in enumerate(lines) if line.startswith("replica "))
    assert [line.split()[:2] for line in lines[start + 1 : start + 4]] == [["0", "20"], ["1", "20"], ["2", "20"]]
    for label in (
        "Most loaded / mean",
        "Cached elsewhere when sent",
        "Computed though cached",
        "Hit rate of one cache",
    ):
        assert any(line.startswith(label) for line in lines)


def test_one_replica_is_a_replay(kvtwin, tmp_path):
    words = ("replay", *CHATS, "--out")
    assert kvtwin(*words, tmp_path / "plain").code == 0
    assert kvtwin(*words, tmp_path / "one", "--data-parallel-size", "1").code == 0
    for name in ("config.yaml", "summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_the_summary_adds_the_replicas_up(kept):
    whole = json.loads((kept / "summary.json").read_text())
    parts = [json.loads((kept / f"replica-{number}" / "summary.json").read_text()) for number in range(2)]
    for name in ("completed", "total_input_tokens", "prefix_cache_hits", "num_evictions", "steps", "device_busy_s"):
        assert whole[name] == pytest.approx(sum(part[name] for part in parts))
    assert [part["num_prompts"] for part in parts] == [row["num_prompts"] for row in whole["replicas"]]
    assert 0 < json.loads((kept / "machine.json").read_text())["router_s"] < 60
    assert whole["num_prompts"] == 60 == sum(row["num_prompts"] for row in whole["replicas"])
    for part, row in zip(parts, whole["replicas"], strict=True):
        assert {name: part[name] for name in row} == row
    assert sum(part["miss_evicted_tokens"] for part in parts) == whole["miss_evicted_tokens"] > 0
    assert whole["load_imbalance"] >= 1
    assert whole["token_imbalance"] >= whole["token_imbalance_overall"] >= 1
    assert whole["overlap_regret_tokens"] > 0
    assert whole["prefix_cache_hit_rate"] < whole["one_cache_hit_rate"] < 1


def test_prefixes_are_counted_where_they_were_sent():
    prompts = [[1, 2, 3], [1, 2, 4], [1, 2, 3], [5], [1, 9], [7], [5]]
    records = [
        RequestRecord(
            request_id=f"r{n}",
            arrival_ns=n * 10**9,
            prompt_tokens=32 * len(ids) + 1,
            output_tokens=2,
            hash_ids=ids,
            hash_block_tokens=32,
        )
        for n, ids in enumerate(prompts)
    ]
    run = kv.replay(
        records, data_parallel_size=2, router="round-robin", max_model_len=4096, step_time="linear", progress=False
    )
    rows = run.summary["routed_prefixes"]
    assert rows[0] == {"from_token": 0, "to_token": 96, "first_request_id": "r0", "requests": [3, 1]}
    assert {"from_token": 0, "to_token": 32, "first_request_id": "r3", "requests": [1, 1]} in rows
    assert len(rows) == 2
    assert run.plot("prefixes") is not None


def test_the_tables_name_the_replica_of_every_row(kept):
    rows, steps = table(kept / "requests.parquet"), table(kept / "steps.parquet")
    for number in range(2):
        own, own_steps = (table(kept / f"replica-{number}" / f"{what}.parquet") for what in ("requests", "steps"))
        mine = [index for index, replica in enumerate(rows["replica"]) if replica == number]
        for name in ("request_id", "finish_ns", "hit_tokens"):
            assert [rows[name][index] for index in mine] == own[name]
        mine = [index for index, replica in enumerate(steps["replica"]) if replica == number]
        assert [steps["start_ns"][index] for index in mine] == own_steps["start_ns"]
    assert sorted(rows["record_index"]) == list(range(60))
    assert all(most >= here for most, here in zip(rows["most_cached_tokens"], rows["cached_tokens"], strict=True))


@pytest.mark.parametrize("number", [0, 1])
def test_the_folder_of_a_replica_is_that_of_its_trace_replayed_alone(kvtwin, kept, tmp_path, number):
    is_replayed_alone(kvtwin, kept / f"replica-{number}", tmp_path / "alone")


def test_a_load_that_is_shaped_is_shaped_once(kvtwin, mooncake, tmp_path):
    """The replica's trace has been through the options of the format and of the load."""
    shape = ("--format", "mooncake", "--rate-scale", "2", "--num-prompts", "9", "--parallel-samples", "2")
    words = (*SMALL_SERVER, *shape, "-dp", "2", "--router", "round-robin")
    assert kvtwin("replay", mooncake(12), *words, "--out", tmp_path / "run").code == 0
    is_replayed_alone(kvtwin, tmp_path / "run" / "replica-1", tmp_path / "alone")


def is_replayed_alone(kvtwin, own, alone):
    options = yaml.safe_load((own / "config.yaml").read_text())["options"]
    read = read_options(
        ReplayCommandOptions, {name: value for name, value in options.items() if value is not None}, "replay"
    )
    assert kvtwin("replay", *command_words(read), "--out", alone).code == 0
    for name in ("requests.parquet", "steps.parquet"):
        assert (own / name).read_bytes() == (alone / name).read_bytes()
    together, again = (json.loads((each / "summary.json").read_text()) for each in (own, alone))
    assert together | {"verdicts": []} == again | {"verdicts": []}


@pytest.mark.parametrize("caches", [(True, False), (False, True)])
def test_replicas_that_cache_nothing_are_in_the_verdict(kvtwin, tmp_path, caches):
    replicas = tmp_path / "replicas.yaml"
    replicas.write_text(yaml.safe_dump([{"enable-prefix-caching": each} for each in caches]))
    outcome = kvtwin("replay", *CHATS, "--replicas", replicas, "--router", "round-robin")
    assert outcome.code == 0
    assert "of the prompt tokens were sent to replicas whose prefix caching is off" in outcome.out
    assert "hit rate 0" not in outcome.out


def test_a_repeated_run_is_the_same_byte_for_byte(kvtwin, kept, tmp_path):
    words = ("replay", *CHATS, "-dp", "2", "--router", "least-loaded", "--out")
    assert kvtwin(*words, tmp_path / "again").code == 0
    for path in sorted(kept.rglob("*")):
        if path.is_file() and path.name not in ("machine.json", "config.yaml"):
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(kept)).read_bytes(), path


def test_events_are_kept_per_replica(kvtwin, tmp_path):
    folder = tmp_path / "run"
    words = ("--data-parallel-size", "2", "--router", "round-robin", "--num-prompts", "10", "--kv-events", "--out")
    assert kvtwin("replay", *CHATS, *words, folder).code == 0
    for number in range(2):
        assert (folder / f"replica-{number}" / "kv_events.jsonl").stat().st_size > 0


def test_unequal_replicas(kvtwin, tmp_path):
    (tmp_path / "replicas.yaml").write_text("- {}\n- {num-gpu-blocks-override: 800, block-size: 32}\n- {}\n")
    words = ("--replicas", tmp_path / "replicas.yaml", "--router", "round-robin", "--json")
    outcome = kvtwin("replay", *CHATS, *words)
    summary = json.loads(outcome.out)
    assert [row["num_gpu_blocks"] for row in summary["replicas"]] == [400, 800, 400]
    assert summary["completed"] == 60
    assert summary["one_cache_hit_rate"] is None
    assert summary["kv_memory_live_mean"] is None


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-dp", "0"], "--data-parallel-size: expected a whole number from 1 to 1024, got '0'"),
        (["-dp", "2", "--router", "nobody"], "--router: expected one of "),
        (
            ["-dp", "2", "--router", "random", "--router-config", '{"virtual_nodes": 3}'],
            "--router-config: virtual_nodes: the router random has no settings",
        ),
        (
            ["-dp", "2", "--router", "session", "--router-config", '{"nodes": 3}'],
            "--router-config: nodes: the router session has virtual_nodes",
        ),
        (
            ["-dp", "2", "--router", "session", "--router-config", '{"virtual_nodes": "3"}'],
            "--router-config: virtual_nodes: expected a whole number, got '3'",
        ),
        (["-dp", "2", "--retention", "pin-until-pressure"], "--retention: not with several replicas"),
        (["-dp", "2", "--warmup-requests", "3"], "--warmup-requests: not with several replicas"),
        (["-dp", "2", "--events"], "--events: needs --out DIR"),
        (
            ["-dp", "2", "--router", "random", "--api-server-count", "2"],
            "--api-server-count: random has no API servers",
        ),
        (["-dp", "2", "--router-event-lag-ms", "2"], "--router-event-lag-ms: vllm-dp sees no KV events"),
        (
            ["-dp", "2", "--router", "prefix-aware", "--router-characters-per-token", "3"],
            "--router prefix-aware: a block of 128 characters is no whole number of tokens of 3",
        ),
        (["--router", "cache_aware"], "--router cache_aware: needs --data-parallel-size or --replicas"),
        (["--router-config", '{"x": 1}'], '--router-config {"x": 1}: needs --data-parallel-size or --replicas'),
        (["--router-event-lag-ms", "2"], "--router-event-lag-ms 2.0: needs --data-parallel-size or --replicas"),
        (["-dp", "2", "--enable-expert-parallel"], "--enable-expert-parallel: meta-llama/Llama-3.1-8B has no experts"),
        (
            ["--model", "Qwen3-30B-A3B", "--replicas", "none.yaml"],
            "--replicas: ranks of Qwen3-30B-A3B share their experts, so they are equal; not a file",
        ),
        (["--data-parallel-rank", "1"], "--data-parallel-rank: all replicas are simulated together"),
        (["-dph"], "--data-parallel-hybrid-lb: needs --data-parallel-size"),
        (["-dp", "4", "-dph"], "--data-parallel-hybrid-lb: needs --data-parallel-size-local"),
        (["-dp", "4", "-dph", "-dpl", "3"], "--router vllm-dp: nodes of 3 ranks: 4 ranks do not fill them"),
        (["-dp", "4", "-dph", "-dpl", "2", "--router", "random"], "--data-parallel-hybrid-lb: random chooses"),
        (["-dp", "4", "-dpl", "2"], "--data-parallel-size-local: makes no difference without"),
        (["-dp", "4", "-dpe"], "--data-parallel-external-lb: meta-llama/Llama-3.1-8B has no experts"),
        (
            ["-dp", "4", "-dph", "-dpl", "2", "--router-config", '{"nodes": "least"}'],
            "--router vllm-dp: nodes: expected round-robin or random, got 'least'",
        ),
    ],
)
def test_bad_input_is_one_line(kvtwin, mooncake, words, complaint):
    kvtwin("replay", mooncake(), *SMALL_SERVER, *words).complains(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "expected a list with the options of each replica"),
        ("- 3", "expected a list with the options of each replica"),
        ("- {}\n- {request-rate: 3}", "replica 1: request-rate: not an option in which replicas can differ"),
        (
            "- {}\n- {data-parallel-size: 4}",
            "replica 1: data-parallel-size: not an option in which replicas can differ",
        ),
        ("- {}\n- {spread: true}", "replica 1: spread: not an option in which replicas can differ"),
        ("- {block-size: x}\n- {}", "replica 0: --block-size: expected a whole number"),
        ("- {}\n- {}\n- {}", "--data-parallel-size 2: "),
        ("- {}\n- {num-gpu-blocks-override: 3}", "replica 1: To serve at least one request"),
        ("- {}\n- {max-num-seqs: 4, max-num-batched-tokens: 2}", "replica 1: "),
    ],
)
def test_a_bad_file_of_replicas_is_one_line(kvtwin, mooncake, tmp_path, text, complaint):
    (tmp_path / "replicas.yaml").write_text(text)
    words = ("--replicas", tmp_path / "replicas.yaml", "-dp", "2")
    kvtwin("replay", mooncake(), *SMALL_SERVER, *words).complains(complaint)


@pytest.mark.parametrize("router", ["llm-d", "llm-d-precise", "dynamo"])
def test_who_compares_block_by_block_needs_equal_blocks(kvtwin, mooncake, tmp_path, router):
    (tmp_path / "replicas.yaml").write_text("- {}\n- {block-size: 32}\n")
    words = ("--replicas", tmp_path / "replicas.yaml", "--router", router)
    kvtwin("replay", mooncake(), *SMALL_SERVER, *words).complains(
        f"--router {router}: needs replicas with equal --block-size"
    )


def test_only_one_server_is_explained(kvtwin, mooncake):
    outcome = kvtwin("explain", mooncake(), *SMALL_SERVER, "--request", "0", "-dp", "2")
    outcome.complains("--data-parallel-size: only one server can be explained")


# ---------------------------------------------------------------- whoever reads the folder


def test_prometheus_tells_replicas_apart_by_the_label_engine(kept, export):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families(export(kept, "prometheus"))}
    parts = [json.loads((kept / f"replica-{number}" / "summary.json").read_text()) for number in range(2)]
    hits = {sample.labels["engine"]: sample.value for sample in families["vllm:prefix_cache_hits"].samples}
    assert hits == {str(number): part["prefix_cache_hits"] for number, part in enumerate(parts)}
    assert all({"0", "1"} == {sample.labels["engine"] for sample in family.samples} for family in families.values())


def test_plots_report_and_comparison_know_replicas(kvtwin, kept, tmp_path):
    assert kvtwin("plot", kept, "--out", tmp_path / "pictures").code == 0
    assert (tmp_path / "pictures" / "timeline.svg").stat().st_size > 0
    assert (tmp_path / "pictures" / "prefixes.svg").stat().st_size > 0
    assert kvtwin("report", kept, "--out", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "replica 1" in page
    assert "2 Replicas" in page
    assert "Requests with a prefix, by replica" in page
    older = tmp_path / "older"
    shutil.copytree(kept, older)
    summary = json.loads((kept / "summary.json").read_text())
    del summary["routed_prefixes"]
    (older / "summary.json").write_text(json.dumps(summary))
    kvtwin("plot", older).complains("older: has no 'routed_prefixes': another version of kvtwin wrote it")
    outcome = kvtwin("compare", kept / "replica-0", kept / "replica-1")
    assert outcome.code == 0
    outcome = kvtwin("compare", kept, kept / "replica-1")
    assert "misrouted_tokens" in outcome.out


def test_python_has_the_replicas_too(kept, tmp_path):
    import kvtwin as kv

    run = kv.load_run(kept)
    assert [part.summary["num_prompts"] for part in run.replicas] == [
        row["num_prompts"] for row in run.summary["replicas"]
    ]
    assert run.requests.replica.nunique() == 2
    assert run.plot() is not None
    run.save(tmp_path / "copy")
    assert kv.load_run(tmp_path / "copy").replicas[1].summary == run.replicas[1].summary
    assert run.replicas[0].replicas == []


def test_a_sweep_over_routers(kvtwin, tmp_path):
    import pandas

    (tmp_path / "sweep.yaml").write_text(
        "trace: demo\n"
        "options: {num-prompts: 30, num-gpu-blocks-override: 400, max-model-len: 4096, step-time: linear}\n"
        "axes: {router: [round-robin, cache_aware], data-parallel-size: [1, 2]}\n"
        "columns: [prefix_cache_hit_rate, load_imbalance]\n"
    )
    assert kvtwin("sweep", tmp_path / "sweep.yaml", "--workers", "1", "--out", tmp_path / "sweep").code == 0
    table = pandas.read_parquet(tmp_path / "sweep" / "results.parquet")
    assert list(table.load_imbalance.isna()) == [True, False, True, False]
    assert table[table["data-parallel-size"] == 1].prefix_cache_hit_rate.nunique() == 1
    assert (tmp_path / "sweep" / "points").is_dir()


# ---------------------------------------------------------------- a mixture of experts


EXPERTS = {"model": "Qwen3-30B-A3B", "max_model_len": 4096, "data_parallel_size": 2, "num_prompts": 8}


def test_ranks_of_a_mixture_of_experts_step_together():
    ranks = kv.replay("demo", enable_expert_parallel=True, progress=False, **EXPERTS)
    servers = kv.replay("demo", router="round-robin", progress=False, **EXPERTS)
    idle = ranks.summary["idle_rank_passes"]
    assert idle > 0
    assert 2 * ranks.summary["forward_passes"] == (ranks.steps["tokens"] > 0).sum() + idle
    assert "forward_passes" not in servers.summary
    assert ranks.summary["num_gpu_blocks"] > servers.summary["num_gpu_blocks"]  # experts are shared


def test_the_text_counts_their_passes(kvtwin):
    words = [word for name, value in EXPERTS.items() for word in (f"--{name.replace('_', '-')}", value)]
    text = kvtwin("replay", "demo", *words).out
    assert any(line.startswith("Passes together / ranks without requests:") for line in text.splitlines())


# ---------------------------------------------------------------- replicas that run in parallel


class Inline:
    """A Dask client that does everything at once, here."""

    def submit(self, function, *arguments, pure):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def inline(monkeypatch):
    @contextmanager
    def client(*_):
        yield Inline()

    monkeypatch.setattr("kvtwin.experiments.runs.parallel_replicas.dask_client", client)


def files_of(replayed):
    return {name: content for name, content in replayed.files().items() if not name.endswith("machine.json")}


def crowd(count, *, kinds):
    """Requests of which many come at one instant, on few prefixes."""
    return [
        RequestRecord(
            request_id=str(n),
            arrival_ns=n // 6 * 40_000_000,
            prompt_tokens=160,
            output_tokens=1 + n % 5,
            hash_ids=[n % kinds, 100 + n % 25, *range(1000 + 3 * n, 1003 + 3 * n)],
            hash_block_tokens=32,
        )
        for n in range(count)
    ]


ROUTED = [("crowd", "round-robin"), ("rejected", "session")]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    "case",
    slow_but(
        ROUTED, [*ROUTED, ("demo", "session"), *(("crowd", name) for name in ("random", "session", "prefix-aware"))]
    ),
)
def test_in_parallel_all_is_the_same_byte_for_byte(case, tmp_path):
    trace, router = case
    words = {"trace": "demo", "num_prompts": 60, "num_gpu_blocks_override": 60, "max_model_len": 900}
    words |= {"data_parallel_size": 3, "router": router, "step_time": "linear", "out": tmp_path / "run"}
    options = read_options(ReplayOptions, words, "kvtwin replay")
    records = crowd(60, kinds=4)
    if trace == "rejected":  # by the engine, which knows no adapters
        records = [replace(record, lora_name="adapter" if n % 3 else None) for n, record in enumerate(records)]
    workload = None if trace == "demo" else workload_of(records)
    once = replay_replicas(options, workload)
    parallel = replay_replicas(replace(options, executor="dask"), workload)
    assert once.summary["num_evictions"] > 0
    assert once.summary["overlap_regret_tokens"] > 0 or router in ("session", "prefix-aware")
    assert files_of(parallel) == files_of(once)
    assert parallel.heading == once.heading


@pytest.mark.slow
def test_a_cluster_of_this_machine(kvtwin, kept, tmp_path):
    pytest.importorskip("distributed", reason="extra dask")
    words = ("replay", *CHATS, "-dp", "2", "--router", "session", "--out")
    assert kvtwin(*words, tmp_path / "once").code == 0
    assert kvtwin(*words, tmp_path / "parallel", "--executor", "dask").code == 0
    for path in sorted((tmp_path / "once").rglob("*.*")):
        if path.name not in ("machine.json", "config.yaml"):  # these name when, and the folder
            assert path.read_bytes() == (tmp_path / "parallel" / path.relative_to(tmp_path / "once")).read_bytes()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "--executor: needs --data-parallel-size or --replicas"),
        (["-dp", "2"], "--executor: vllm-dp looks at all replicas, so they run in one process"),
        (["-dp", "2", "--router", "oracle"], "--executor: oracle looks at all replicas"),
        (["-dp", "2", "--router", "round-robin"], "waits for an answer, which decides where round-robin sends others"),
        (["-dp", "2", "--router", "session", "--max-concurrency", "3"], "--executor: --max-concurrency counts"),
        (["-dp", "2", "--router", "session", "--kv-events", "--out", "new"], "--executor: not with --kv-events"),
    ],
)
def test_what_cannot_run_in_parallel_is_one_line(kvtwin, words, complaint):
    kvtwin("replay", *CHATS, "--executor", "dask", *words).complains(complaint)


class Losing:
    """A client of a cluster that does not get anything done."""

    def __init__(self, error):
        self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def submit(self, *_, **__):
        future = Future()
        future.set_exception(self.error)
        return future


def test_a_cluster_that_loses_its_workers_is_one_line(kvtwin, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="extra dask")
    words = ("replay", *CHATS, "-dp", "2", "--router", "session", "--executor", "tcp://there:1")
    for error, complaint in (
        (distributed.KilledWorker("part", None, 3), "--executor tcp://there:1: its workers were lost"),
        (ModuleNotFoundError("No module named 'kvtwin'"), "--executor tcp://there:1: its workers need this version"),
    ):
        monkeypatch.setattr(distributed, "Client", lambda *_, error=error, **__: Losing(error))
        kvtwin(*words).complains(complaint)


def test_where_there_is_no_cluster(kvtwin, monkeypatch):
    words = ("replay", *CHATS, "-dp", "2", "--router", "session", "--executor")
    monkeypatch.setitem(sys.modules, "distributed", None)
    kvtwin(*words, "dask").complains("--executor: needs the extra: pip install 'kvtwin[dask]'")
    monkeypatch.undo()
    kvtwin(*words, "nonsense://x").complains("--executor nonsense://x")
    kvtwin(*words, "").complains("--executor: expected dask, or the address of a Dask cluster")
