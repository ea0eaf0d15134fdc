"""Public configuration shapes against what the real vLLM makes of them (``ask_models.py``, whose answers are kept)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvtwin.engine.sizing.cache_plan import plan_cache
from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.engine.sizing.model_shape import ModelConfigError
from kvtwin.engine.sizing.sparse_latent import cache_format
from kvtwin.engine.sizing.state_checkpoints import with_checkpoints
from kvtwin.experiments.catalogue.models import load_model_config, model_names

HERE = Path(__file__).parent
CASES = json.loads((HERE / "model_table.json").read_text())
SERVER = {"max_num_batched_tokens": 8192, "tensor_parallel_size": 1, "kv_cache_dtype": "auto"}
SERVER |= {"async_scheduling": True, "enable_prefix_caching": True, "compute_capability": [9, 0]}
KINDS = {
    "FullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MambaSpec": "mamba",
}


def config_of(case):
    """A case's own configuration, or that of a model of the catalogue."""
    return load_model_config(case["model"])[0] if "model" in case else case["config"]


def planned(case):
    server = SERVER | case["server"]
    shape = read_hf_config(config_of(case), case["name"])
    shape = with_checkpoints(shape, caches_prefixes=server["enable_prefix_caching"], compute_capability=0.0)
    kv_cache_dtype = cache_format(shape, server["kv_cache_dtype"], server["compute_capability"][0])
    layers = cache_layers(
        shape,
        block_size=shape.kernel_block_tokens,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=server["tensor_parallel_size"],
    )
    plan = plan_cache(
        layers,
        [server["available_bytes"]],
        max_model_len=server.get("max_model_len") or shape.default_max_model_len or shape.max_position_tokens,
        in_flight_tokens=server["max_num_batched_tokens"] * (2 if server["async_scheduling"] else 1),
        mamba_blocks=2 if server["enable_prefix_caching"] else 1,
    )
    return shape, plan


def test_the_table_is_long_and_has_the_whole_catalogue():
    assert len(CASES) >= 60
    assert all("num_blocks" in case["answer"] for case in CASES)
    assert {case["model"] for case in CASES if "model" in case} == set(model_names())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan_and_parameters_equal_the_real_ones(case):
    shape, plan = planned(case)
    expected = case["answer"]
    caches_prefixes = case["server"].get("enable_prefix_caching", True)
    groups = [
        {
            "kind": group.kind,
            "block_size": group.block_size if caches_prefixes or group.kind != "mamba" else plan.max_model_len,
            "page_bytes": sorted({layer.page_bytes for layer in group.layers}),
            "layers": list(group.layer_indices),
        }
        for group in plan.groups
    ]
    assert groups == [
        {
            "kind": KINDS[group["kind"]],
            "block_size": group["block_size"],
            "page_bytes": group["page_bytes"],
            "layers": group["layers"],
        }
        for group in expected["groups"]
    ]
    assert plan.num_blocks == expected["num_blocks"]
    assert plan.max_model_len == expected["max_model_len"]
    assert plan.concurrency_at(plan.max_model_len) == expected["max_concurrency"]
    assert plan.capacity_tokens == expected["capacity_tokens"]
    if case["server"].get("tensor_parallel_size", 1) == 1:
        padded_rows = -shape.vocab_size % 64 * (1 if shape.tied_embeddings else 2)  # as vLLM loads a vocabulary
        assert shape.total_params + padded_rows * shape.hidden_size == expected["parameters"]


@pytest.mark.parametrize(
    ("name", "capability", "alignment"),
    [("kimi-k3", 9.0, 16), ("kimi-k3", 10.3, 16), ("kimi-k3", 8.0, None), ("ling-3.0-tiny", 9.0, None)],
)
def test_states_of_kimi_k3_leave_checkpoints_where_flash_kda_runs(name, capability, alignment):
    config = next(case["config"] for case in CASES if case["name"] == name)
    shape = with_checkpoints(read_hf_config(config, name), caches_prefixes=True, compute_capability=capability)
    states = {layer.spec.prefill_checkpoint_alignment for layer in shape.layers if layer.spec.kind == "mamba"}
    assert states == {alignment}


def test_index_keys_of_minimax_m3_stay_in_16_bits():
    config = next(case["config"] for case in CASES if case["name"] == "minimax-m3")
    keys, main = read_hf_config(config, "minimax-m3").layers[-1].specs
    assert keys.token_bytes("fp8", "bfloat16") == keys.token_bytes("auto", "bfloat16") == 256
    assert main.token_bytes("fp8", "bfloat16") == 1024


def test_layers_of_ling_3_with_another_gate_are_refused():
    config = next(case["config"] for case in CASES if case["name"] == "ling-3.0-tiny")
    with pytest.raises(ModelConfigError, match="no_kda_lora must be true"):
        read_hf_config({**config, "no_kda_lora": False}, "ling-3.0-tiny")


@pytest.mark.slow
def test_the_answers_are_those_of_vllm(tmp_path):
    """Ask again, where the oracle and the packages of ``ask_models.py`` are set up."""
    if not {"VLLM_ORACLE_SRC", "ORACLE_PYTHON"} <= set(os.environ):
        pytest.skip("the oracle is not set up: VLLM_ORACLE_SRC and ORACLE_PYTHON name it")
    asked = [replace_model(case) for case in CASES[::12]]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(asked))
    command = [os.environ["ORACLE_PYTHON"], str(HERE / "ask_models.py"), str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if "compressed_tensors" in run.stdout + run.stderr:
        pytest.skip("the packages that ask_models.py needs are not installed")
    answers = json.loads(file.read_text())
    assert [case["answer"] for case in answers] == [case["answer"] for case in CASES[::12]]


def replace_model(case):
    """The case with its configuration in place of the catalogue's name, and without its answer."""
    return {"name": case["name"], "config": config_of(case), "server": case["server"]}
