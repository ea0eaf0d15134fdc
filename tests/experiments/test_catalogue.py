"""Finding models and GPUs by name."""

import json
from pathlib import Path

import pytest

from kvtwin.experiments.catalogue.gpus import gpu_names, load_gpu
from kvtwin.experiments.catalogue.models import (
    _names_and_aliases,
    load_model,
    load_model_config,
    model_names,
    unconfirmed,
)
from kvtwin.experiments.errors import UserError


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "llama-3.1-8b", "LLAMA-3.1-8B"])
def test_models_by_name_in_any_case(name):
    assert load_model(name).name == "meta-llama/Llama-3.1-8B"


def test_aliases_have_the_shape_of_their_model_and_their_own_name():
    base = load_model("meta-llama/Llama-3.1-70B")
    for name in ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b-instruct", "DeepSeek-R1-Distill-Llama-70B"):
        model = load_model(name)
        assert model.name.lower().endswith(name.lower())
        assert model.layers == base.layers


def test_no_name_means_two_models():
    names = [name.lower() for name in _names_and_aliases()]
    assert len(names) == len(set(names))
    assert len({name.split("/")[-1] for name in names}) == len(names)


def test_every_entry_can_be_read():
    assert len(model_names()) >= 60
    for name in model_names():
        assert load_model(name).num_layers > 0
        assert not any("not known" in note for note in load_model(name).notes)
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.name == name
        assert gpu.source


def test_every_entry_of_a_real_model_was_compared_with_a_second_source():
    configs = [load_model_config(name)[0] for name in model_names()]
    assert [config["_name"] for config in configs if not config.get("_checked_against")] == ["tiny"]


def test_what_no_copy_confirms_is_listed(kvtwin):
    listing = kvtwin("models").out
    for name, what in unconfirmed().items():
        assert f"unconfirmed of {name}: {what}" in listing
    assert "ibm-granite/granite-4.0-h-small" in unconfirmed()
    assert "unconfirmed" not in kvtwin("gpus").out


def test_a_path_to_a_config_or_its_folder(tmp_path):
    source = Path(__file__).parents[2] / "experiments/catalogue/configs/smollm2-135m.json"
    (tmp_path / "config.json").write_text(source.read_text())
    assert load_model(str(tmp_path)).total_params == load_model("SmolLM2-135M").total_params
    assert load_model(str(tmp_path / "config.json")).num_layers == 30


def test_a_quantisation_in_a_file_of_its_own(tmp_path):
    config = {key: value for key, value in load_model_config("SmolLM2-135M")[0].items() if key[0] != "_"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    quantization = {
        "quant_algo": "NVFP4",
        "group_size": 16,
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
    producer = {"name": "modelopt", "version": "0.33"}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": producer, "quantization": quantization}))
    model = load_model(str(tmp_path))
    assert (model.quantization, model.kv_cache_dtype) == ("modelopt", "fp8")
    assert model.weight_bytes() < load_model("SmolLM2-135M").weight_bytes() / 2


def test_a_local_hugging_face_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--someone--mine-1b" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(load_model_config("SmolLM2-135M")[0]))
    assert load_model("someone/mine-1b").num_layers == 30
    with pytest.raises(UserError, match="no model 'someone/mine-2b'"):
        load_model("someone/mine-2b")


@pytest.mark.parametrize(("name", "found"), [("H100", "H100-80GB"), ("l4", "L4-24GB"), ("nvidia h200", "H200-141GB")])
def test_gpus_without_their_memory_size(name, found):
    assert load_gpu(name).name == found


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError, match=r"no model 'llama-3\.1-9b'.*meta-llama/Llama-3\.1-8B"):
        load_model("llama-3.1-9b")
    with pytest.raises(UserError, match=r"nearest: Qwen/Qwen2\.5-7B-Instruct, "):
        load_model("qwen2.5-7c")
    with pytest.raises(
        UserError, match=r"nearest: mistralai/Mistral-[^,]*, mistralai/Mistral-[^,]*, mistralai/Mistral-"
    ):
        load_model("mistral-medium")
    with pytest.raises(UserError, match=r"no GPU 'H1000'.*nearest: H100-80GB"):
        load_gpu("H1000")


def test_an_ambiguous_gpu_names_the_choices():
    with pytest.raises(UserError, match="ambiguous: A100-40GB, A100-80GB"):
        load_gpu("A100")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        load_model(str(tmp_path / "absent.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        load_model(str(broken))
    broken.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="has no num_hidden_layers"):
        load_model(str(broken))


def test_a_gpu_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    fields = {
        "memory_gib": 10,
        "memory_gb_per_s": 100,
        "bf16_tflops": 1,
        "fp8_tflops": 0,
        "nvlink_gb_per_s": 0,
        "pcie_gb_per_s": 16,
    }
    path.write_text("mine:\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items()))
    assert load_gpu(str(path)).memory_bytes == 10 << 30
    path.write_text("mine:\n  memory_gib: ten\n")
    with pytest.raises(UserError, match="memory_gib must be a number of more than 0, up to 1000000, not 'ten'"):
        load_gpu(str(path))
    path.write_text("mine:\n  memory: 10\n")
    with pytest.raises(UserError, match="unknown field memory"):
        load_gpu(str(path))


@pytest.mark.parametrize(
    "name",
    ["A100-40", "A100-80", "H100", "H200", "B200", "B300", "GH200", "GB200", "H20", "L4", "L20", "L40S", "A10G", "A30"],
)
def test_every_gpu_by_the_name_that_people_say(name):
    assert load_gpu(name).name.replace("-", " ").startswith(name.replace("-", " "))


@pytest.mark.parametrize(
    "name",
    ["MI300X", "MI325X", "MI355X", "RTX 3090", "RTX 4090", "RTX 5090", "RTX PRO 6000"],
)
def test_every_board_by_the_name_that_people_say(name):
    assert load_gpu(name).name.replace("-", " ").startswith(name.replace("-", " "))
