"""The model and the device of the command line."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra gpu)")

from kvtwin.experiments.catalogue.models import load_model_config  # noqa: E402
from kvtwin.experiments.errors import UserError  # noqa: E402
from kvtwin.experiments.options.device import DeviceOptions  # noqa: E402
from kvtwin.experiments.options.reading import read_options  # noqa: E402
from kvtwin.experiments.setup.device import load_device_model  # noqa: E402
from kvtwin.gpu.decoder_config import TINY, read_decoder_config  # noqa: E402
from kvtwin.gpu.decoder_weights import build_weights  # noqa: E402
from kvtwin.gpu.random_weights import RandomWeights  # noqa: E402


def load(model="tiny", seed=0, **options):
    return load_device_model(read_options(DeviceOptions, options, "kvtwin validate"), model, seed)


def test_tiny_is_the_catalogues():
    """Its cache is planned with the config.json, and it is computed as the config of the same name."""
    assert replace(read_decoder_config(*load_model_config("tiny")), dtype="float32") == TINY


def test_the_seed_decides_random_weights():
    heads = [load(seed=seed).decoder.weights.head for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_weights_come_from_files_of_the_same_model(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'kvtwin[gpu]'")
    from safetensors.torch import save_file

    tensors = {}

    class Written(RandomWeights):
        def read(self, name, shape):
            return tensors.setdefault(name, super().read(name, shape))

    build_weights(TINY, Written(5, torch.device("cpu")), torch.device("cpu"), torch.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(load_model_config("tiny")[0]))
    loaded = load(weights=tmp_path)
    assert torch.equal(loaded.decoder.weights.head, tensors["lm_head.weight"])
    with pytest.raises(UserError, match=r"num_layers is 4, and 30 in HuggingFaceTB/SmolLM2-135M"):
        load(weights=tmp_path, model="smollm2-135m")


def test_a_device_that_is_not_there():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"cuda: torch .* finds no GPU"):
        load(device="cuda")


def test_models_and_weights_that_are_not_there(tmp_path):
    for args, words in (
        ({"model": "gemma-3-4b-it"}, "gemma-3-4b-it: model_type must be one of"),
        ({"model": "qwen3-30b-a3b"}, "model_type must be one of"),
        ({"model": "tinny"}, "no model 'tinny' in the catalogue"),
        ({"weights": tmp_path / "none.gguf"}, "none.gguf"),
        ({"weights": tmp_path}, "config.json"),
    ):
        with pytest.raises(UserError, match=words):
            load(**args)


def test_without_torch(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kvtwin.gpu.device_model", None)
    with pytest.raises(UserError, match=r"pip install 'kvtwin\[gpu\]'"):
        load()
