"""A server's run beside its simulation; a simulated server stands for the real one."""

import json
from pathlib import Path

import pytest
import yaml

from kvtwin.experiments.command_line import main
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_validation.kv_state import compare_kv_logs, kv_log, read_kv_log
from kvtwin.experiments.server_validation.metrics_text import counted_between, read_metrics
from kvtwin.experiments.server_validation.record import read_server_record

OPTIONS = ("--gpu", "rtx-4090", "--model", "Llama-3.1-8B", "--max-model-len", "2048")
BLOCKS = ("--num-gpu-blocks-override", "250")
BEFORE = "vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\nvllm:num_preemptions_total 0\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What a server left whose steps are as the roofline says, and the trace that it was sent."""
    base = tmp_path_factory.mktemp("served")
    sizes = ("--num-prompts", "20", "--conversations-per-s", "40", "--output-tokens", "100")
    run("trace", "generate", base / "trace.jsonl", *sizes)
    serve(base, "alike", "roofline")
    return base


def serve(base, name, step_time):
    """Simulate a server, and save of it what one can save of a real one."""
    folder, kept = base / name, base / f"{name}-run"
    folder.mkdir()
    events = ("--events", "--kv-events", "--out", kept)
    run("replay", base / "trace.jsonl", *OPTIONS, *BLOCKS, "--step-time", step_time, *events)
    run("export", kept, "--to", "vllm-bench", "--out", folder / "bench.json")
    run("export", kept, "--to", "prometheus", "--out", folder / "metrics-after.txt")
    (folder / "metrics-before.txt").write_text(BEFORE)
    (folder / "kv_events.jsonl").write_bytes((kept / "kv_events.jsonl").read_bytes())


def run(*words):
    assert main([str(word) for word in words]) == 0


def beside(base, name, *options):
    """The words of a command that compares a served run with its simulation."""
    return ("validate", base / "trace.jsonl", "--server-run", base / name, *OPTIONS, *options, "--json")


@pytest.mark.slow
def test_a_server_like_ours_is_equal_in_all_that_can_be_compared(served, kvtwin):
    facts = json.loads(kvtwin(*beside(served, "alike", *BLOCKS)).out)
    assert facts["counters"].keys() == {"prefix_cache_queries", "prefix_cache_hits", "num_preemptions"}
    assert facts["counters"]["num_preemptions"]["measured"] > 0
    for figure in (*facts["counters"].values(), *facts["latencies"].values()):
        assert figure["simulated"] == pytest.approx(figure["measured"], rel=1e-6)
        assert figure["inside"] in (None, True)
    assert facts["kv_events"]["first_difference"] is None
    assert facts["kv_events"]["stored"]["measured"] == facts["kv_events"]["stored"]["simulated"] > 100
    assert facts["kv_events"]["removed"]["only_measured"] == 0


@pytest.mark.slow
def test_a_slower_server_is_seen(served, kvtwin):
    """Its steps take half as long again."""
    slow = {"model": "adjusted", "base": "roofline", "decode_scale": 1.5, "prefill_scale": 1.5}
    (served / "slow.yaml").write_text(yaml.safe_dump(slow))
    serve(served, "slow", served / "slow.yaml")
    facts = json.loads(kvtwin(*beside(served, "slow", *BLOCKS)).out)
    tpot = facts["latencies"]["mean TPOT"]
    assert tpot["error"] == pytest.approx(1 / 1.5 - 1, abs=0.05)
    assert tpot["inside"] is False
    assert facts["kv_events"]["first_difference"].startswith("change ")
    text = kvtwin(*beside(served, "slow", *BLOCKS)[:-1]).out
    assert "(measured is outside)" in text
    assert "not checked: steps: a server does not say how long each took" in text


def test_the_server_may_be_described_in_a_file(served, kvtwin, tmp_path):
    """As `kvtwin calibrate --server` takes it."""
    options = {"model": "Llama-3.1-8B", "gpu": "rtx-4090", "num-gpu-blocks-override": 251}
    (tmp_path / "server.yaml").write_text(yaml.safe_dump({"trace": str(served / "trace.jsonl"), "options": options}))
    outcome = kvtwin("validate", tmp_path / "server.yaml", "--server-run", served / "none")
    outcome.complains("none: No such file or directory")


@pytest.mark.slow
def test_outputs_are_as_long_as_they_were(served, kvtwin, tmp_path):
    """A server stopped one answer earlier than the trace says."""
    data = json.loads((served / "alike" / "bench.json").read_text())
    data["output_lens"][0] -= 1
    data["itls"][0].pop()
    (tmp_path / "bench.json").write_text(json.dumps(data))
    words = ("validate", served / "trace.jsonl", "--server-run", tmp_path, *OPTIONS, *BLOCKS)
    assert kvtwin(*words).code == 0


def test_another_server_is_refused(served, kvtwin):
    info = 'vllm:cache_config_info{num_gpu_blocks="250",block_size="16"} 1.0\n'
    path = served / "alike" / "metrics-after.txt"
    if "cache_config_info" not in path.read_text():
        path.write_text(path.read_text() + info)
    kvtwin(*beside(served, "alike", "--num-gpu-blocks-override", "800")).complains(
        "--num-gpu-blocks-override 800: the server of", "had 250"
    )
    kvtwin(*beside(served, "alike", "--block-size", "32")).complains("--block-size 32", "had 16")


def test_what_is_missing_is_named(served, kvtwin, tmp_path):
    words = ("validate", served / "trace.jsonl", "--server-run", tmp_path)
    kvtwin(*words, *OPTIONS).complains("has none of bench.json, requests.jsonl", "--save-detailed")
    (tmp_path / "bench.json").write_bytes((served / "alike" / "bench.json").read_bytes())
    kvtwin(*words).complains("--server-run: needs --model and --gpu")
    (tmp_path / "metrics-after.txt").write_text(BEFORE)
    kvtwin(*words, *OPTIONS).complains("has metrics-after.txt without metrics-before.txt")
    (tmp_path / "metrics-before.txt").write_text("# nothing\n")
    kvtwin(*words, *OPTIONS).complains("has none of vllm:prefix_cache_queries")
    for name in ("kv_events.jsonl", "kv_events.msgpack"):
        (tmp_path / name).write_text("")
    (tmp_path / "metrics-before.txt").write_text(BEFORE)
    kvtwin(*words, *OPTIONS).complains("has both kv_events.jsonl and kv_events.msgpack")
    (tmp_path / "requests.jsonl").write_text("")
    kvtwin(*words, *OPTIONS).complains("has both bench.json")


def test_counters_of_all_engines_are_summed_and_those_before_are_taken_off(tmp_path):
    line = 'vllm:prefix_cache_hits_total{{engine="{0}"}} {1}\n'
    (tmp_path / "before").write_text(line.format(0, 10) + line.format(1, 5))
    (tmp_path / "after").write_text(line.format(0, 30) + line.format(1, 7))
    assert counted_between(tmp_path / "before", tmp_path / "after").counters == {"prefix_cache_hits": 22}
    with pytest.raises(UserError, match="the server was started again"):
        counted_between(tmp_path / "after", tmp_path / "before")
    assert read_metrics(tmp_path / "after").cache == {}
    over_time = 'vllm:prefix_cache_hits_total{engine="0"} 10 1.0\nvllm:prefix_cache_hits_total{engine="0"} 30 2.0\n'
    (tmp_path / "after").write_text(over_time)
    assert read_metrics(tmp_path / "after").counters == {"prefix_cache_hits": 30}


def stored(hashes, tokens, parent=None):
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": 2}


def removed(*hashes):
    return {"type": "BlockRemoved", "block_hashes": list(hashes)}


def log(*events):
    return kv_log([[0.0, [event]] for event in events], "log")


def test_blocks_are_told_apart_by_content_not_by_hash():
    one = log(stored([7, 8], [1, 2, 3, 4]), removed(8))
    two = log(stored([70], [1, 2]), stored([80], [3, 4], parent=70), removed(80))
    facts = compare_kv_logs(one, two)
    assert facts["first_difference"] is None
    assert facts["left at the end"] == {"measured": 1, "simulated": 1, "only_measured": 0, "only_simulated": 0}


def test_what_one_of_two_did_alone_is_counted_and_the_first_is_named():
    one = log(stored([7, 8], [1, 2, 3, 4]), removed(8))
    two = log(stored([7, 8], [1, 2, 3, 4]), removed(7), removed(8))
    facts = compare_kv_logs(one, two)
    assert facts["removed"] == {"measured": 1, "simulated": 2, "only_measured": 0, "only_simulated": 1}
    assert facts["first_difference"] == (
        "change 3: removed the block that ends with tokens 3, 4, simulated removed the block that ends with tokens 1, 2"
    )
    assert facts["differing"] == ["only the simulation removed the block that ends with tokens 1, 2"]


def test_all_blocks_that_are_cleared_are_no_longer_there():
    one, two = log(stored([7], [1, 2])), log(stored([7], [1, 2]), {"type": "AllBlocksCleared"})
    facts = compare_kv_logs(two, one)
    assert facts["left at the end"] == {"measured": 0, "simulated": 1, "only_measured": 0, "only_simulated": 1}
    assert facts["first_difference"] == "change 2: the server goes on alone"


def test_the_same_tokens_behind_others_are_another_block():
    one = log(stored([1], [1, 2]), stored([2], [3, 4], parent=1))
    two = log(stored([1], [9, 2]), stored([2], [3, 4], parent=1))
    assert compare_kv_logs(one, two)["stored"]["only_measured"] == 2


def test_blocks_from_before_the_log_are_counted_and_a_bad_line_is_named():
    assert log(removed(5), stored([6], [1, 2], parent=5)).num_unknown == 2
    with pytest.raises(UserError, match="log:1: expected a batch"):
        kv_log([None], "log")
    with pytest.raises(UserError, match="log:1: expected a batch"):
        kv_log([[0.0, [{"type": "BlockStored"}]]], "log")


def test_batches_as_vllm_publishes_them_are_read(tmp_path):
    """The file holds two messages of vLLM 0.33's own ``KVEventBatch``, as msgspec encodes them."""
    packed = (Path(__file__).parent / "data" / "kv_events.msgpack").read_bytes()
    (tmp_path / "kv_events.msgpack").write_bytes(packed)
    measured = read_kv_log(tmp_path / "kv_events.msgpack")
    same = kv_log([[0.0, [stored([1, 2], [1, 2, 3, 4])]], [0.0, [removed(2), {"type": "AllBlocksCleared"}]]], "log")
    assert measured == same
    for damaged in (*(packed[:-cut] for cut in (1, 2, 3, 30)), packed[:3], packed + b"\xc1", b"\x01"):
        (tmp_path / "kv_events.msgpack").write_bytes(damaged)
        with pytest.raises(UserError, match=r"kv_events\.msgpack:\d: expected a batch of vLLM's KV events"):
            read_kv_log(tmp_path / "kv_events.msgpack")
    (tmp_path / "kv_events.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=r"kv_events\.jsonl:1: expected a batch"):
        read_kv_log(tmp_path / "kv_events.jsonl")


def test_llmservingsims_folder_says_what_the_server_was(tmp_path):
    row = {"request_id": "a", "input_toks": 10, "output_toks": 3, "arrival_time": 1.0, "queued_ts": 70.0}
    (tmp_path / "requests.jsonl").write_text(json.dumps(row | {"first_token_ts": 70.5, "last_token_ts": 72.5}) + "\n")
    server = {"max_num_seqs": 256, "max_model_len": None, "dtype": "bfloat16"}
    meta = {"kv_cache": {"num_gpu_blocks": 2588, "block_size": 16}, "engine_kwargs": server}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert read_server_record(tmp_path).limits == {"num_gpu_blocks": 2588, "block_size": 16, "max_num_seqs": 256}
