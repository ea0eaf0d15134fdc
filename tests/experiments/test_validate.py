"""``kvtwin validate``: a real run, its simulation, the comparison, and two checks that fail when something is wrong."""

import json
import random
import re
import signal
import sys

import pytest
import yaml

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvtwin[gpu]'")

import torch

from kvtwin.experiments.records.executed_steps import read_executed_steps
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.validation.drift import drift_line
from kvtwin.experiments.validation.facts import DECISIONS
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.executor import DeviceExecutor
from tests.experiments.conftest import tokens
from tests.parts import slow_but

SERVER = ("--max-model-len", 128, "--num-gpu-blocks-override", 14, "--max-num-batched-tokens", 64, "--max-num-seqs", 6)
FAST = (*SERVER, "--step-time", "linear")


@pytest.fixture
def crowd(native):
    """A trace of a dozen requests that share prefixes and do not fit together."""

    def path(number=12, seed=0, **changes):
        rng = random.Random(seed)
        rows = [
            {
                "arrival_ns": index * 10**6,
                "prompt_tokens": rng.randint(33, 80),
                "hash_ids": [rng.randrange(2), 10 + rng.randrange(3)],
                "hash_block_tokens": 32,
                "output_tokens": rng.randint(8, 40),
            }
            | changes
            for index in range(number)
        ]
        return native(*rows, name=f"crowd-{number}-{seed}.jsonl")

    return path


@pytest.fixture
def facts_of(kvtwin):
    """Validate; the JSON object, and the exit code."""

    def run(trace, *options):
        outcome = kvtwin("validate", trace, *options, "--json")
        assert outcome.code in (0, 1), outcome
        return json.loads(outcome.out, parse_constant=pytest.fail), outcome.code

    return run


# ---------------------------------------------------------------- what is said


def test_all_is_compared_and_checked(facts_of, crowd):
    facts, code = facts_of(crowd(), *FAST)
    assert code == 0, facts
    assert list(facts) == [
        "date",
        "heading",
        "decisions",
        "latencies",
        "step_time",
        "spread",
        "machine",
        "checks",
        "verdict",
    ]
    assert list(facts["decisions"]) == list(DECISIONS)
    measured = {name: decision["measured"] for name, decision in facts["decisions"].items()}
    assert measured["num_gpu_blocks"] == 14
    assert min(measured.values()) > 0, measured  # hits, evictions and preemptions too
    for latency in facts["latencies"].values():
        assert latency["requests"] == 12
        assert set(latency) == {"requests", "median", "p90", "p99", "request_error"}
    assert facts["step_time"]["steps"] > 50
    first, second = facts["checks"]["check_1"], facts["checks"]["check_2"]
    assert (first["passed"], second["passed"]) == (True, True)
    assert first["steps"] == measured["steps"]
    assert second["requests"] == 12
    assert second["notices_loss"]
    assert facts["verdict"].startswith("passed: ")


def test_a_reference_step_tells_whether_the_machine_changed(facts_of, crowd):
    machine = facts_of(crowd(3), *FAST)[0]["machine"]
    assert min(machine["reference_ms"].values()) > 0
    assert set(machine["reference_ms"]) >= {"before", "after the run"}
    first, *_, last = machine["reference_ms"].values()
    assert abs(machine["drift"]) >= abs(last / first - 1) - 1e-9


@pytest.mark.parametrize(("drift", "words"), [(0.2, "the machine itself changed"), (-0.01, "(-1.0%)")])
def test_drift_is_said_in_words(drift, words):
    facts = {"reference_ms": {"before": 2.0, "after the run": 2.0 * (1 + drift)}, "drift": drift}
    assert words in drift_line(facts)
    assert ("the machine itself" in drift_line(facts)) == (drift == 0.2)


def test_the_text_ends_with_one_verdict(kvtwin, crowd):
    outcome = kvtwin("validate", crowd(3), *FAST)
    assert outcome.code == 0, outcome
    lines = outcome.out.splitlines()
    assert lines[0] == "kvtwin validate (models vLLM 0.33.0)"
    assert lines[-3].startswith("check 1: passed: ")
    assert lines[-2].startswith("check 2: passed: ")
    assert lines[-1].startswith("passed: the same decisions and the same tokens; steps are predicted within ")


@pytest.mark.slow
def test_both_runs_are_kept(kvtwin, crowd, tmp_path):
    out = tmp_path / "out"
    outcome = kvtwin("validate", crowd(), *FAST, "--out", out)
    assert outcome.code == 0, outcome
    assert sorted(path.name for path in out.iterdir()) == [
        *("comparison.json", "comparison.txt", "measured", "predicted", "step_times.parquet", "validate.png")
    ]
    assert (out / "validate.png").read_bytes().startswith(b"\x89PNG")
    measured, predicted = Run(out / "measured"), Run(out / "predicted")
    assert list(measured.requests["request_id"]) != []
    assert set(measured.requests["request_id"]) == set(predicted.requests["request_id"])
    assert measured.requests.keys() == predicted.requests.keys()
    assert measured.summary.keys() == predicted.summary.keys()
    assert (
        json.loads((out / "comparison.json").read_text())["decisions"]["steps"]["measured"] == measured.summary["steps"]
    )
    decided, executed = read_executed_steps(measured)
    assert len(decided) == len(executed) == measured.summary["steps"]
    for command in (
        ("compare", out / "measured", out / "predicted"),
        ("report", out),
        ("plot", out / "measured"),
    ):
        assert kvtwin(*command).code == 0
    kvtwin("validate", crowd(), *FAST, "--out", out).complains("already exists")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.slow
def test_equal_seeds_say_equal_tokens(kvtwin, crowd, tmp_path):
    said = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert kvtwin("validate", crowd(4), *FAST, "--seed", seed, "--out", tmp_path / name).code == 0
        requests = {}
        for step in read_executed_steps(Run(tmp_path / name / "measured"))[1]:
            for request_id, output in zip(step.request_ids, step.tokens, strict=True):
                requests.setdefault(request_id, []).extend(output)
        said.append(requests)
    assert said[0] == said[1] != said[2]


@pytest.mark.slow
def test_without_a_file_of_step_times_they_are_measured_first(kvtwin, crowd):
    outcome = kvtwin("validate", crowd(3), *SERVER)
    assert outcome.code == 0, outcome
    assert "measuring step times" in outcome.err
    assert "step time  calibrated (tiny on cpu), measured just before" in outcome.out


# ---------------------------------------------------------------- workloads


KINDS_OF_SERVERS = [
    ("--no-async-scheduling",),
    ("--preemption-mode", "swap", "--swap-space", 0.01),
    ("--kv-offloading-size", 0.01),
    ("--parallel-samples", 3, "--parallel-sampling", "fork"),
    ("--scheduling-policy", "priority", "--debug"),
    ("--block-size", 32, "--max-num-batched-tokens", 16),
    ("--max-concurrency", 2, "--check"),
    ("--warmup-requests", 4),
    ("--temperature", 0.8),
    ("--no-enable-prefix-caching",),
]


@pytest.mark.parametrize(
    "options",
    slow_but([KINDS_OF_SERVERS[1]], KINDS_OF_SERVERS),
    ids=lambda options: " ".join(map(str, options)),
)
def test_every_kind_of_server_passes(facts_of, crowd, options):
    facts, code = facts_of(crowd(6, seed=len(options[0])), *FAST, *options)
    assert code == 0, facts["checks"]


@pytest.mark.parametrize(
    "options",
    [
        ("--block-size", 1, "--num-gpu-blocks-override", 160),
        ("--block-size", 128, "--num-gpu-blocks-override", 3),  # a request has one block
        ("--block-size", 256, "--num-gpu-blocks-override", 2),
        ("--block-size", 64, "--max-num-batched-tokens", 128, "--num-gpu-blocks-override", 3),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
@pytest.mark.slow
def test_every_block_size_passes(facts_of, crowd, options):
    facts, code = facts_of(crowd(4), *FAST, *options)
    assert code == 0, facts["checks"]


@pytest.mark.parametrize("prompt_tokens", slow_but([17], [1, 16, 17, 127]))
def test_a_single_token_of_output_passes(facts_of, native, prompt_tokens):
    """With the longest prompt there is no room to decode: the control makes some."""
    trace = native({"prompt_tokens": prompt_tokens, "output_tokens": 1})
    facts, code = facts_of(trace, *FAST, "--max-num-batched-tokens", 128)
    assert code == 0, facts["checks"]


@pytest.mark.slow
def test_lengths_shrink_and_sharing_survives(facts_of, mooncake):
    facts, code = facts_of(mooncake(20), *FAST, "--length-scale", 0.1, "--limit", 12, "--rate-scale", 50)
    assert code == 0, facts
    assert facts["heading"][1].endswith("12 requests, lengths x 0.1")
    assert facts["latencies"]["ttft"]["requests"] == 12
    assert facts["decisions"]["prefix_cache_hits"]["measured"] >= 48  # of the 51 tokens that all of them share


@pytest.mark.slow
def test_sessions_and_the_demo(facts_of):
    facts, code = facts_of("demo", *FAST, "--length-scale", 0.06, "--num-sessions", 6, "--think-time", 0)
    assert code == 0, facts
    assert facts["latencies"]["ttft"]["requests"] > 6


def test_token_ids_of_the_trace_are_sent(kvtwin, native, tmp_path):
    trace = native(tokens(*range(50)), tokens(*range(50)))
    assert kvtwin("validate", trace, *FAST, "--out", tmp_path / "out").code == 0
    assert Run(tmp_path / "out" / "measured").summary["prefix_cache_hits"] == 48


@pytest.mark.slow
def test_a_yaml_file_of_options(kvtwin, crowd, tmp_path):
    def spec(**data):
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    options = {str(flag)[2:]: value for flag, value in zip(FAST[::2], FAST[1::2], strict=True)}
    path = spec(trace=str(crowd(3)), options=options | {"limit": 2})
    for words in ([path], [path, "--limit", 1], ["--limit", 1, path], [path, "--num-prompts", 1]):
        outcome = kvtwin("validate", *words)
        assert outcome.code == 0, outcome
        assert f"{2 if len(words) == 1 else 1} requests" in outcome.out.splitlines()[1]
    kvtwin("validate", spec(options={})).complains("trace: expected a workload file, or demo")
    kvtwin("validate", spec(trace="demo", axes={})).complains("axes: unknown key, expected one of trace, options")
    kvtwin("validate", spec(trace="demo", options={"lmit": 4})).complains("--lmit", "nearest: --limit")
    kvtwin("validate", spec(trace="demo", options={"out": "x"})).complains("out: not an option")
    kvtwin("validate", spec(trace="demo", options=[4])).complains("options: expected a mapping")
    kvtwin("validate", tmp_path / "none.yaml").complains("none.yaml")


# ---------------------------------------------------------------- checks that fail


def replace_executor(monkeypatch, executor_class):
    monkeypatch.setattr("kvtwin.gpu.device_model.DeviceExecutor", executor_class)


def test_tampered_evidence_fails_check_1(monkeypatch, facts_of, crowd):
    class SaysOtherSlot(DeviceExecutor):
        def collect(self, ticket):
            result = super().collect(ticket)
            if self.executed and self.executed[-1].index == 20 and self.executed[-1].slots:
                self.executed[-1].slots[0][0] += 1
            return result

    replace_executor(monkeypatch, SaysOtherSlot)
    facts, code = facts_of(crowd(), *FAST)
    assert code == 1
    check = facts["checks"]["check_1"]
    assert not check["passed"]
    assert "step 20" in check["differences"][0]
    assert facts["checks"]["check_2"]["passed"]
    assert facts["verdict"] == "FAILED: check 1"


def test_lost_contents_fail_check_2(monkeypatch, facts_of, crowd):
    class LosesContents(DeviceExecutor):
        has_lost = False

        def submit(self, step):
            if step.index == 25 and not self.has_lost:
                self.has_lost = True
                for index in range(4):
                    for request in step.requests:
                        self._cache.layer(index).values[request.block_tables[0]] *= -1
            return super().submit(step)

    replace_executor(monkeypatch, LosesContents)
    facts, code = facts_of(crowd(), *FAST)
    assert code == 1
    assert facts["checks"]["check_1"]["passed"]
    check = facts["checks"]["check_2"]
    assert not check["passed"]
    assert check["wrong_tokens"] > 0
    assert check["first_wrong"].startswith("request r")
    assert facts["verdict"] == "FAILED: check 2"


@pytest.mark.slow
def test_wrong_tables_fail_both(monkeypatch, facts_of, crowd):
    class LosesBlocks(DeviceExecutor):
        def submit(self, step):
            if 10 <= step.index < 40:
                for _, (blocks,) in step.new_blocks:
                    blocks[:] = [1] * len(blocks)
            return super().submit(step)

    replace_executor(monkeypatch, LosesBlocks)
    facts, code = facts_of(crowd(), *FAST)
    assert (code, facts["verdict"]) == (1, "FAILED: check 1 and check 2")


def test_nothing_served_proves_nothing(facts_of, native):
    facts, code = facts_of(native({"prompt_tokens": 500}), *FAST)
    assert code == 1
    assert "note    not served: 1, prompt >= max_model_len" in facts["heading"]
    assert facts["checks"]["check_1"]["words"] == "no step was run"
    assert facts["checks"]["check_2"]["words"] == "no token was generated"


@pytest.mark.parametrize("options", slow_but([()], [(), ("--no-async-scheduling",)]))
def test_a_server_that_hangs_as_vllm_does_passes(facts_of, native, options):
    trace = native({}, {"lora": "adapter"}, {})
    facts, code = facts_of(trace, *FAST, *options, "--vllm-strict")
    assert code == 0, facts["checks"]
    assert "note    not served: 1, left, none could be scheduled" in facts["heading"]
    facts, code = facts_of(trace, *FAST, *options)
    assert code == 0, facts["checks"]
    assert "note    not served: 1, LoRA is not enabled" in facts["heading"]


# ---------------------------------------------------------------- replicas


TWO = (*FAST, "--data-parallel-size", 2, "--router", "round-robin")
COUPLED = [("--router", "least-loaded", "--max-concurrency", 3, "--debug"), ("--router", "dynamo", "--check")]
FEW = {"number": 4, "output_tokens": 6}


@pytest.mark.slow
def test_each_replica_has_an_executor_of_its_own_and_is_checked(facts_of, kvtwin, crowd, tmp_path):
    out = tmp_path / "out"
    facts, code = facts_of(crowd(**FEW), *TWO, "--out", out)
    assert code == 0, facts["checks"]
    assert "data    parallel over 2 equal replicas, router round-robin" in facts["heading"]
    measured, predicted = Run(out / "measured"), Run(out / "predicted")
    assert list(measured.configuration) == list(predicted.configuration)
    for number, (replica, decisions) in enumerate(zip(measured.replicas, facts["replicas"], strict=True)):
        decided, executed = read_executed_steps(replica)
        check = facts["checks"]["check_1"]["replicas"][number]
        assert len(decided) == len(executed) == replica.summary["steps"] == check["steps"] > 5
        assert facts["checks"]["check_2"]["replicas"][number]["requests"] == 2
        assert decisions["num_prompts"] == {"measured": 2, "predicted": 2, "difference": 0}
        assert decisions["steps"]["predicted"] == predicted.replicas[number].summary["steps"]
        assert replica.summary.keys() == predicted.replicas[number].summary.keys()
    whole = facts["decisions"]["prefix_cache_hits"]["measured"]
    assert whole == sum(replica.summary["prefix_cache_hits"] for replica in measured.replicas) > 0
    assert list(measured.requests["replica"]).count(1) == 2
    lines = (out / "comparison.txt").read_text().splitlines()
    assert [line[0] for line in lines if line[1:].split()[:3] == ["2", "/", "2"]] == ["0", "1"]
    assert lines[-4] == "check 2: passed: at each of 2 replicas"
    assert lines[-2].startswith("  replica 1: passed: ")
    assert kvtwin("report", out).code == 0
    assert kvtwin("calibrate", "--from", out / "measured").err.count("name ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", COUPLED, ids=lambda options: " ".join(map(str, options)))
def test_replicas_behind_every_kind_of_router_pass(facts_of, crowd, options):
    facts, code = facts_of(crowd(**FEW), *FAST, "--data-parallel-size", 2, *options)
    assert code == 0, facts["checks"]


@pytest.mark.slow
def test_unequal_replicas_and_one_to_which_nothing_comes(facts_of, native, tmp_path):
    (tmp_path / "replicas.yaml").write_text("- {}\n- {block-size: 32, max-num-seqs: 2, num-gpu-blocks-override: 9}\n")
    trace = native(*({"prompt_tokens": 40, "output_tokens": 4, "session": "one"} for _ in range(2)))
    words = ("--replicas", tmp_path / "replicas.yaml", "--router")
    facts, code = facts_of(trace, *FAST, *words, "round-robin")
    assert code == 0, facts["checks"]
    assert "data    parallel over 2 unequal replicas, router round-robin" in facts["heading"]
    facts, code = facts_of(trace, *FAST, *words, "session")
    assert code == 0, facts["checks"]
    said = [check["words"] for check in facts["checks"]["check_1"]["replicas"]]
    assert said.count("no request came here") == 1


@pytest.mark.slow
def test_a_fault_of_one_replica_is_seen_there(monkeypatch, facts_of, crowd):
    made = []

    class SaysOtherSlot(DeviceExecutor):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            made.append(self)

        def collect(self, ticket):
            result = super().collect(ticket)
            if self is made[1] and self.executed[-1].index == 5 and self.executed[-1].slots:
                self.executed[-1].slots[0][0] += 1
            return result

    replace_executor(monkeypatch, SaysOtherSlot)
    facts, code = facts_of(crowd(**FEW), *TWO)
    assert (code, facts["verdict"]) == (1, "FAILED: check 1")
    check = facts["checks"]["check_1"]
    assert check["words"] == "at replica 1 of 2"
    assert [replica["passed"] for replica in check["replicas"]] == [True, False]
    assert "step 5" in check["replicas"][1]["differences"][0]
    assert facts["checks"]["check_2"]["passed"]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ("[{}, {model: smollm2-135m}]", (), ["replica 1: --model: all replicas compute with one model"]),
        ("[{gpu: h200}]", (), ["replica 0: --gpu: use --device"]),
        (None, ("-dp", 2, "--model", "Qwen3-30B-A3B"), ["ranks that share experts step together"]),
        (None, ("-dp", 2, "--enable-expert-parallel"), ["--enable-expert-parallel"]),
        (None, ("--router", "session"), ["--router session: needs --data-parallel-size or --replicas"]),
        (None, ("-dp", 2, "--warmup-requests", 2), ["--warmup-requests: not with several replicas"]),
    ],
)
def test_replicas_that_cannot_be_are_one_line(kvtwin, crowd, tmp_path, rows, options, words):
    if rows:
        (tmp_path / "replicas.yaml").write_text(rows)
        options = ("--replicas", tmp_path / "replicas.yaml")
    kvtwin("validate", crowd(), *FAST, *options).complains(*words)


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "h200"), ["--gpu: use --device"]),
        (("--tensor-parallel-size", 2), ["--tensor-parallel-size: validation uses a single device"]),
        (("--gpu-memory-utilization", 0.5), ["--gpu-memory-utilization: use --kv-cache-memory-bytes"]),
        (("--weight-bytes", "1GiB"), ["--weight-bytes: the device's memory is measured"]),
        (("--kv-cache-dtype", "fp8"), ["--kv-cache-dtype"]),
        (("--no-ignore-eos",), ["--ignore-eos"]),
        (("--speculative-config", "{}"), ["--speculative-config: validation does not run a draft model"]),
        (("--model", "gemma-3-4b-it"), ["model_type"]),
        (("--model", "nothing.json"), ["nothing.json"]),
        (("--weights", "nowhere"), ["nowhere"]),
        (("--weights", "nowhere.gguf"), ["nowhere.gguf"]),
        (("--length-scale", 0), ["--length-scale"]),
        (("--length-scale", 2), ["--length-scale"]),
        (("--temperature", -1), ["--temperature"]),
        (("--device", "tpu"), ["--device"]),
        (("--step-time", "nothing.yaml"), ["--step-time"]),
        (("--step-time", "roofline"), ["--step-time roofline: roofline does not know"]),
        (("--max-model-len", 4096), ["(4096)"]),
        (("--dtype", "bfloat16"), ["--dtype", "float32"]),
        (("--warmup-requests", 12), ["--warmup-requests"]),
        (("--num-gpu-blocks-override", 30_000_000), ["memory"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_what_cannot_be_is_one_line(kvtwin, crowd, options, words):
    kvtwin("validate", crowd(), *FAST, *options).complains(*words)


def test_no_gpu(kvtwin, crowd):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    kvtwin("validate", crowd(), *FAST, "--device", "cuda").complains("finds no GPU")


def test_no_torch(kvtwin, crowd, monkeypatch):
    monkeypatch.setitem(sys.modules, "kvtwin.gpu.device_model", None)
    kvtwin("validate", crowd(), *FAST).complains(f"{sys.executable} -m pip install 'kvtwin[gpu]'")


def test_the_help_shows_no_option_that_is_refused(kvtwin):
    text = kvtwin("validate", "--help").out
    assert "--dtype" in text
    assert not re.search("--(gpu|tensor-parallel-size|kv-cache-dtype|speculative-config|ignore-eos) ", text)


def test_random_weights_take_any_token_id(kvtwin, native):
    outcome = kvtwin("validate", native(tokens(*range(4090, 4140)) | {"output_tokens": 5}), *FAST)
    assert outcome.code == 0, outcome
    assert "check 2: passed: 5 tokens of 1 requests" in outcome.out


def test_requests_that_no_model_can_read(kvtwin, native):
    image = {"hash": "h", "offset_tokens": 0, "length_tokens": 4}
    kvtwin("validate", native({"images": [image]}), *FAST).complains("trace.jsonl:2", "images: expected text only")


OUT_OF_MEMORY = [
    MemoryError("no more"),
    torch.OutOfMemoryError("no more"),
    RuntimeError("no more: can't allocate memory"),
]


@pytest.mark.parametrize("error", slow_but(OUT_OF_MEMORY[1:2], OUT_OF_MEMORY))
def test_memory_that_runs_out_leaves_the_record_of_what_ran(kvtwin, crowd, tmp_path, monkeypatch, error):
    forward, calls = Decoder.forward, []

    def failing(*arguments):
        calls.append(None)
        if len(calls) == 40:  # ten are those of the reference step
            raise error
        return forward(*arguments)

    monkeypatch.setattr(Decoder, "forward", failing)
    out = tmp_path / "out"
    kvtwin("validate", crowd(), *FAST, "--out", out).complains("no more", f"{out / 'measured'} has the record")
    assert [path.name for path in out.iterdir()] == ["measured"]
    run = Run(out / "measured")
    decided, executed = read_executed_steps(run)
    assert 29 <= len(executed) == len(decided) == len(run.steps["tokens"])
    assert 0 < run.summary["completed"] + run.summary["unfinished"] <= 12
    assert kvtwin("plot", out / "measured").code == 0
    calls.clear()
    kvtwin("validate", crowd(), *FAST).complains("no more", "--out DIR keeps the record")


@pytest.fixture
def interrupts():
    """As at a terminal; a shell's background jobs ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting_at(step_index, times=1):
    class Interrupts(DeviceExecutor):
        """The user interrupts while this works."""

        def submit(self, step):
            if step.index == step_index:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return super().submit(step)

    return Interrupts


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("options", slow_but([()], [(), ("--no-async-scheduling",), ("--warmup-requests", 2)]))
def test_an_interrupted_run_leaves_the_record_of_what_ran(kvtwin, crowd, tmp_path, monkeypatch, options):
    replace_executor(monkeypatch, interrupting_at(30))
    out = tmp_path / "out"
    outcome = kvtwin("validate", crowd(), *FAST, *options, "--out", out)
    assert (outcome.code, outcome.out) == (130, ""), outcome
    assert outcome.err == f"kvtwin: interrupted; {out / 'measured'} has the record of what ran\n"
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"]
    assert [path.name for path in out.iterdir()] == ["measured"]
    decided, executed = read_executed_steps(Run(out / "measured"))
    assert 0 <= len(decided) - len(executed) <= 2
    assert decided[-1].index == 30
    assert kvtwin("calibrate", "--from", out / "measured").code in (0, 2)
    assert kvtwin("report", out / "measured").code == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interrupts")
def test_who_interrupts_twice_does_not_wait(kvtwin, crowd, tmp_path, monkeypatch):
    replace_executor(monkeypatch, interrupting_at(30, times=2))
    outcome = kvtwin("validate", crowd(), *FAST, "--out", tmp_path / "out")
    assert outcome.code == 130, outcome
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_who_interrupts_the_check_keeps_both_runs(kvtwin, crowd, tmp_path, monkeypatch):
    monkeypatch.setattr(Decoder, "dense_logits", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    out = tmp_path / "out"
    outcome = kvtwin("validate", crowd(3), *FAST, "--out", out)
    assert outcome.code == 130, outcome
    assert sorted(path.name for path in out.iterdir()) == ["measured", "predicted"]
    outcome = kvtwin("validate", crowd(3), *FAST)
    assert (outcome.code, outcome.err) == (130, "kvtwin: interrupted; --out DIR keeps the record of what ran\n")


@pytest.mark.slow
def test_memory_that_the_check_lacks_leaves_both_runs(kvtwin, crowd, tmp_path, monkeypatch):
    def failing(*arguments, **settings):
        raise MemoryError

    monkeypatch.setattr(Decoder, "dense_logits", failing)
    out = tmp_path / "out"
    outcome = kvtwin("validate", crowd(3), *FAST, "--out", out)
    outcome.complains("tokens without a cache", "MemoryError", f"{out / 'measured'} has the record")
    assert sorted(path.name for path in out.iterdir()) == ["measured", "predicted"]
