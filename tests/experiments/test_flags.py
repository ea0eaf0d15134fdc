"""vLLM's flags: each is modelled, or refused by name with a reason; never ignored."""

from dataclasses import fields

import pytest

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.host_memory import HostMemoryOptions
from kvtwin.experiments.options.refused import NOT_MODELLED
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.setup.engine import flag_of
from tests.experiments.conftest import SMALL_SERVER

MODELLED = {
    "--model": "Llama-3.1-8B",
    "--max-model-len": "4096",
    "--dtype": "bfloat16",
    "--block-size": "16",
    "--gpu-memory-utilization": "0.9",
    "--kv-cache-memory-bytes": "10GiB",
    "--num-gpu-blocks-override": "2000",
    "--kv-cache-dtype": "auto",
    "--mamba-cache-dtype": "auto",
    "--mamba-ssm-cache-dtype": "auto",
    "--enable-prefix-caching": None,
    "--prefix-caching-hash-algo": "xxhash_cbor",
    "--prefix-cache-retention-interval": "None",
    "--prefix-match-unit": "16",
    "--max-num-batched-tokens": "4096",
    "--max-num-scheduled-tokens": "4096",
    "--max-num-seqs": "64",
    "--max-num-active-seqs": "32",
    "--long-prefill-token-threshold": "1000",
    "--enable-chunked-prefill": None,
    "--scheduling-policy": "priority",
    "--scheduler-reserve-full-isl": None,
    "--watermark": "0.01",
    "--prefill-schedule-interval": "2",
    "--async-scheduling": None,
    "--disable-hybrid-kv-cache-manager": None,
    "--tensor-parallel-size": "2",
    "--pipeline-parallel-size": "1",
    "--enable-lora": None,
    "--max-loras": "3",
    "--preemption-mode": "swap",
    "--swap-space": "0.5",
    "--kv-offloading-size": "2.5",
    "--kv-offloading-backend": "native",
    "--data-parallel-size": "2",
    "--disable-chunked-mm-input": None,
    "--kv-cache-metrics": None,
    "--kv-cache-metrics-sample": "0.5",
    "--speculative-config": '{"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", '
    '"synthetic_acceptance_length": 1.5}',
}
"""Flags of vLLM that are modelled, with a value; None for switches."""

NEEDS = {"--max-loras": ["--enable-lora"], "--swap-space": ["--preemption-mode", "swap"]}
"""What has to be there beside a flag."""

REFUSED = [
    "--mamba-block-size",
    "--mamba-cache-mode",
    "--data-parallel-rank",
    "--decode-context-parallel-size",
    "--max-num-partial-prefills",
    "--max-long-partial-prefills",
]
"""Flags of vLLM, now or once, that are not."""


@pytest.fixture
def replay(kvtwin, mooncake):
    return lambda *options: kvtwin("replay", mooncake(), *SMALL_SERVER, *options)


@pytest.fixture
def size(kvtwin):
    return lambda *options: kvtwin("size", "--model", "Llama-3.1-8B", "--gpu", "h200", *options)


@pytest.mark.parametrize("flag", MODELLED)
def test_a_modelled_flag_is_taken_in_all_its_forms(replay, flag):
    value = MODELLED[flag]
    extra = NEEDS.get(flag, [])
    if value is None:
        forms = [[flag], [f"--no-{flag[2:]}"], [flag.replace("-", "_").replace("__", "--", 1)]]
    else:
        forms = [[flag, value], [f"{flag}={value}"], ["--" + flag[2:].replace("-", "_") + f"={value}"]]
    for form in forms:
        assert replay(*form, *extra).code == 0, form


@pytest.mark.parametrize("flag", [flag for flag, value in MODELLED.items() if value is None])
def test_a_switch_is_recorded_as_it_was_set(kvtwin, mooncake, tmp_path, flag):
    for form, wanted in ((flag, "true"), (f"--no-{flag[2:]}", "false")):
        kvtwin("replay", mooncake(), *SMALL_SERVER, form, "--out", tmp_path / wanted)
        config = (tmp_path / wanted / "config.yaml").read_text()
        assert f"{flag[2:].replace('-', '_')}: {wanted}\n" in config


@pytest.mark.parametrize("flag", dict.fromkeys([*REFUSED, *(flag for flag in NOT_MODELLED if flag.startswith("--"))]))
def test_a_flag_that_is_not_modelled_is_refused_with_its_reason(replay, size, flag):
    for run in (replay, size):
        for form in ([flag], [flag, "1"], [f"{flag}=1"], ["--" + flag[2:].replace("-", "_") + "=1"]):
            run(*form).complains(f"{flag}: {NOT_MODELLED[flag]}")
        run(f"--no-{flag[2:]}").complains(f"--no-{flag[2:]}: {NOT_MODELLED[flag]}")


def test_short_forms_are_refused_like_the_long_ones(replay, size):
    for run in (replay, size):
        run("-dcp", "2").complains("-dcp: context parallelism is not modelled")


ENGINE_FLAGS = [
    field.flag for options in (EngineOptions, HostMemoryOptions, ReplicaOptions) for field in fields_of(options)
]


@pytest.mark.parametrize("flag", ENGINE_FLAGS)
def test_size_refuses_what_does_not_decide_the_size(size, flag):
    size(flag).complains(flag, "kvtwin replay")
    size(f"{flag}=1").complains(flag, "kvtwin replay")


def test_what_the_engine_refuses_is_told_by_a_flag_that_exists():
    flags = {field.flag for field in fields_of(ReplayOptions)}
    settings = {field.name for field in fields(EngineConfig)} - {"cache_groups", "hash_seed"}
    assert {flag_of(name) for name in settings} <= flags


def test_an_unknown_flag_names_the_nearest(replay, size):
    replay("--max-modle-len", "5").complains("--max-modle-len", "nearest: --max-model-len")
    replay("--kv-cache-memory=5").complains("--kv-cache-memory:", "nearest: --kv-cache-memory-bytes")
    assert "nearest" not in replay("--seats", "5").err
    size("--max-modle-len=5").complains("--max-modle-len", "nearest: --max-model-len")


def test_flags_are_not_abbreviated(replay):
    replay("--max-model", "4096").complains("--max-model:")
