"""Small models with random weights, saved by transformers and read from its files, give transformers' logits."""

from importlib.util import find_spec

import pytest

if find_spec("transformers") is None:  # not imported here: that takes seconds
    pytest.skip("transformers is not installed: it is in the extra dev", allow_module_level=True)
pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'kvtwin[gpu]'")

import torch

from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_weights import build_weights
from kvtwin.gpu.model_files import read_model_files
from kvtwin.gpu.torch_attention import TorchAttention

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 300,
    "hidden_size": 72,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True}),
    "llama, all heads have keys": ("Llama", {"num_key_value_heads": 6}),
    "llama 3.1's rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3, biases": ("Qwen3", {"attention_bias": True}),
}


def reference(case):
    """A model of transformers, with biases and norms that are not what they start as."""
    family, changes = CASES[case]
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def decoder_of(folder):
    files = read_model_files(folder)
    return Decoder(files.config, build_weights(files.config, files.source, CPU, torch.float32), TorchAttention())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case, tmp_path):
    torch.set_num_threads(1)
    model = reference(case)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(SIZES["vocab_size"], (200,), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
    found = decoder_of(tmp_path).dense_logits(tokens)
    assert expected.std() > 0.5
    assert torch.allclose(found, expected, atol=2e-4)


def test_shards_are_the_same_as_one_file(tmp_path):
    model = reference("qwen3")
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    tokens = torch.arange(30)
    one, many = (decoder_of(tmp_path / name).dense_logits(tokens) for name in ("one", "many"))
    assert torch.equal(one, many)
