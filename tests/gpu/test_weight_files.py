"""Files of weights: GGUF gives what was written into it, and whatever is wrong with a file is one line."""

import json
import random
import shutil

import pytest

pytest.importorskip("gguf", reason="gguf is not installed: pip install 'kvtwin[gpu]'")
pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'kvtwin[gpu]'")

from dataclasses import fields, replace

import gguf
import torch
from safetensors.torch import load_file, save_file

from kvtwin.gpu.decoder_config import TINY
from kvtwin.gpu.decoder_weights import build_weights
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.gguf_weights import _IN_LAYER, _OUTSIDE
from kvtwin.gpu.model_files import read_model_files, read_weights
from kvtwin.gpu.random_weights import RandomWeights

CPU = torch.device("cpu")
SMALL = replace(
    TINY, num_layers=2, hidden_size=64, intermediate_size=96, num_query_heads=4, head_dim=16, vocab_size=160
)


class Recorded(RandomWeights):
    """Random weights that remember what was asked for; norms are random, too."""

    def __init__(self, config):
        super().__init__(7, CPU)
        self.tensors = {}
        self.weights = build_weights(config, self, CPU, torch.float32)

    def read(self, name, shape):
        values = super().read(name, shape)
        self.tensors[name] = values * torch.rand(shape) if len(shape) == 1 else values
        return self.tensors[name]


def load(path):
    files = read_model_files(path)
    return build_weights(files.config, files.source, CPU, torch.float32)


def flat(weights):
    """All tensors of a model under their names, those that are not there left out."""
    layers = {f"{i}.{f.name}": getattr(layer, f.name) for i, layer in enumerate(weights.layers) for f in fields(layer)}
    outside = {f.name: getattr(weights, f.name) for f in fields(weights) if f.name != "layers"}
    return {name: tensor for name, tensor in (layers | outside).items() if tensor is not None}


# GGUF


def write_gguf(path, config, tensors, architecture="llama", *, kind=None, without=(), more=None, metadata=None):
    """A file as llama.cpp's converter writes it: matrices of ``kind``, query and key rows in its order."""
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "block_count": config.num_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_query_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "context_length": config.max_position_tokens,
    }
    for name, value in numbers.items():
        if name not in without:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", config.rope.theta)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.norm_epsilon)
    for name, value in (metadata or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{name}", value)
    theirs = {ours: name for name, ours in (_OUTSIDE | _IN_LAYER).items()}
    for name, tensor in tensors.items():
        parts = name.split(".")
        stem = ".".join(parts[3:-1] if parts[1] == "layers" else parts[:-1])
        stored = f"blk.{parts[2]}.{theirs[stem]}.{parts[-1]}" if parts[1] == "layers" else f"{theirs[stem]}.{parts[-1]}"
        if stored in without:
            continue
        if architecture == "llama" and parts[-2] in ("q_proj", "k_proj"):
            heads = config.num_query_heads if parts[-2] == "q_proj" else config.num_kv_heads
            tensor = tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
        values = tensor.numpy()
        if kind is None or tensor.dim() == 1:
            writer.add_tensor(stored, values)
        else:
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("llama", SMALL),
        ("llama", replace(SMALL, tied_embeddings=True)),
        ("llama", replace(SMALL, qkv_bias=True, output_bias=True)),
        ("qwen2", replace(SMALL, qkv_bias=True)),
        ("qwen3", replace(SMALL, qk_norm=True)),
    ],
)
def test_gguf_gives_what_was_written(architecture, config, tmp_path):
    recorded = Recorded(config)
    path = write_gguf(tmp_path / "m.gguf", config, recorded.tensors, architecture)
    read = read_model_files(path).config
    assert replace(read, name=config.name, dtype=config.dtype, norm_epsilon=config.norm_epsilon) == config
    found, expected = flat(load(path)), flat(recorded.weights)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 5e-3), ("Q8_0", 1e-2), ("Q4_1", 0.12)])
def test_gguf_is_dequantised(kind, error, tmp_path):
    recorded = Recorded(SMALL)
    path = write_gguf(tmp_path / "m.gguf", SMALL, recorded.tensors, kind=gguf.GGMLQuantizationType[kind])
    found, expected = flat(load(path)), flat(recorded.weights)
    for name in expected:
        relative = (found[name] - expected[name]).norm() / expected[name].norm()
        assert (relative < error) if expected[name].dim() == 2 else relative == 0


def test_gguf_carries_rope_scaling_in_its_metadata_or_in_a_tensor(tmp_path):
    tensors = Recorded(SMALL).tensors
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "linear.gguf", SMALL, tensors, metadata=linear)
    assert read_model_files(path).config.rope.divisors == (4.0,) * 8
    divisors = torch.linspace(1, 8, 8)
    path = write_gguf(tmp_path / "tensor.gguf", SMALL, tensors, more={"rope_freqs.weight": divisors})
    assert read_model_files(path).config.rope.divisors == tuple(divisors.tolist())
    load(path)


BAD_GGUF = {
    "no tensor": ({"without": ["blk.1.ffn_up.weight"]}, "model.layers.1.mlp.up_proj.weight is missing"),
    "no embedding": ({"without": ["token_embd.weight"]}, "model.embed_tokens.weight is missing"),
    "no number": ({"without": ["block_count"]}, "llama.block_count is missing"),
    "left over": ({"more": {"rope.mystery": torch.ones(2), "x.y": torch.ones(1)}}, "rope.mystery does not belong"),
    "another architecture": ({"architecture": "gemma3"}, "model_type must be one of llama"),
    "yarn": (
        {"metadata": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}},
        "rope type 'yarn' cannot be executed",
    ),
    "experts": ({"metadata": {"expert_count": 8.0}}, "num_local_experts"),
    "divisors": ({"more": {"rope_freqs.weight": torch.ones(5)}}, "rope_freqs.weight has shape [5]"),
}


@pytest.mark.parametrize("case", BAD_GGUF)
def test_a_gguf_that_does_not_fit_is_one_line(case, tmp_path):
    settings, expected = BAD_GGUF[case]
    tensors = Recorded(SMALL).tensors
    path = write_gguf(tmp_path / "m.gguf", SMALL, tensors, **settings)
    with pytest.raises(DeviceError) as error:
        load(path)
    assert str(error.value).startswith(str(path))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gguf_of_another_size_is_one_line(tmp_path):
    tensors = Recorded(SMALL).tensors
    path = write_gguf(tmp_path / "m.gguf", replace(SMALL, intermediate_size=97), tensors)
    with pytest.raises(DeviceError, match=r"gate_proj.weight has shape \[96, 64\]; the config asks for \[97, 64\]"):
        load(path)


def test_a_damaged_gguf_is_one_line(tmp_path):
    """Cut anywhere, or with other bytes in its head: an error of one line, or the weights after all."""
    whole = write_gguf(tmp_path / "m.gguf", SMALL, Recorded(SMALL).tensors).read_bytes()
    path = tmp_path / "damaged.gguf"
    chance = random.Random(0)
    for trial in range(120):
        if trial < 60:
            path.write_bytes(whole[: chance.randrange(len(whole)) // (1 + trial % 3 * 20)])
        else:
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[chance.randrange(2000)] = chance.randrange(256)
            path.write_bytes(damaged)
        message = None
        try:
            load(path)
        except DeviceError as error:
            message = str(error)
        assert message or trial >= 60, "a file without its end was accepted"
        assert message is None or (str(path) in message and "\n" not in message)


def test_weights_of_another_model_are_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", SMALL, Recorded(SMALL).tensors)
    assert read_weights(path, replace(SMALL, name="other", norm_epsilon=1e-4, dtype="float16"))
    with pytest.raises(DeviceError, match=r"m.gguf: num_query_heads is 4, and 8 in tiny"):
        read_weights(path, replace(SMALL, num_query_heads=8, head_dim=8))


# safetensors


@pytest.fixture
def checkpoint(tmp_path):
    """A folder as transformers leaves it, and its tensors."""
    config = {
        "model_type": "llama",
        "hidden_size": SMALL.hidden_size,
        "intermediate_size": SMALL.intermediate_size,
        "num_hidden_layers": SMALL.num_layers,
        "num_attention_heads": SMALL.num_query_heads,
        "num_key_value_heads": SMALL.num_kv_heads,
        "vocab_size": SMALL.vocab_size,
        "max_position_embeddings": SMALL.max_position_tokens,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(Recorded(SMALL).tensors, tmp_path / "model.safetensors")
    return tmp_path


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder):
    with pytest.raises(DeviceError) as error:
        load(folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_safetensors_give_what_was_written(checkpoint):
    found, expected = flat(load(checkpoint)), flat(Recorded(SMALL).weights)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected if expected[name].dim() == 2)


DOWN = "model.layers.1.mlp.down_proj.weight"


def test_a_tensor_that_does_not_fit_is_one_line(checkpoint):
    change_tensors(checkpoint, lambda tensors: tensors.update({DOWN: torch.ones(64, 95)}))
    assert f"{DOWN} has shape [64, 95]; the config asks for [64, 96]" in refused(checkpoint)
    change_tensors(checkpoint, lambda tensors: tensors.update({DOWN: torch.ones(64, 96, dtype=torch.int32)}))
    assert f"{DOWN} has dtype I32; expected one of" in refused(checkpoint)
    change_tensors(checkpoint, lambda tensors: tensors.pop(DOWN))
    assert f"{DOWN} is missing" in refused(checkpoint)
    change_tensors(checkpoint, lambda tensors: tensors.update({DOWN: torch.ones(64, 96), "model.more": torch.ones(1)}))
    assert "model.more does not belong to the model of its config" in refused(checkpoint)


def test_what_follows_from_the_config_or_is_there_twice_is_left_out(checkpoint):
    change_tensors(checkpoint, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": torch.ones(1)}))
    load(checkpoint)
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    weights = load(checkpoint)
    assert weights.head is weights.embedding


def test_damaged_safetensors_are_one_line(checkpoint):
    path = checkpoint / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "not readable as safetensors" in refused(checkpoint)
    path.unlink()
    assert "has neither model.safetensors nor model.safetensors.index.json" in refused(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_one_line(text, checkpoint):
    (checkpoint / "model.safetensors.index.json").write_text(text)
    assert "weight_map" in refused(checkpoint)


def test_a_missing_shard_is_one_line(checkpoint):
    index = {"weight_map": dict.fromkeys(load_file(checkpoint / "model.safetensors"), "model-00001.safetensors")}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00001.safetensors" in refused(checkpoint)
    shutil.move(checkpoint / "model.safetensors", checkpoint / "model-00001.safetensors")
    load(checkpoint)
