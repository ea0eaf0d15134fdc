"""What a device has left for the cache."""

import pytest
import torch

from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_config import read_decoder_config
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.memory_profile import measured_budget, run_largest_step
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.device_run import random_weights

CPU = torch.device("cpu")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}
LIMITS = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "block_size": 16}


@pytest.fixture(scope="module")
def decoder():
    config = read_decoder_config(CONFIG, "small")
    return Decoder(config, random_weights(config, 0, CPU, torch.float32), TorchAttention())


def budget_of(decoder, **options):
    return measured_budget(decoder, read_hf_config(CONFIG, "small"), **{**LIMITS, "utilization": 0.5, **options})


def test_weights_are_counted_once_and_the_rest_is_left(decoder):
    shape = read_hf_config(CONFIG, "small")
    budget = budget_of(decoder, total_bytes=10_000_000)
    spent = {item.name: item.num_bytes for item in budget.items}
    assert spent["weights"] == 4 * shape.total_params
    assert spent["activation peak"] > 0
    assert budget.available_bytes == 5_000_000 - sum(spent.values())


def test_too_little_memory_is_one_line_with_the_numbers(decoder):
    with pytest.raises(DeviceError) as caught:
        budget_of(decoder, total_bytes=100_000)
    message = str(caught.value)
    assert "\n" not in message
    assert "no memory left for a KV cache" in message
    assert "50,000 bytes may be used (0.5 of 100,000)" in message


def test_a_cpu_needs_a_budget(decoder):
    with pytest.raises(DeviceError, match="must be given"):
        budget_of(decoder)


@pytest.mark.parametrize(("num_tokens", "num_sequences"), [(32, 4), (3, 8), (100, 2), (1, 1)])
def test_the_largest_step_runs_and_samples_for_every_sequence(decoder, num_tokens, num_sequences):
    """Whatever is more: tokens or sequences, or tokens than the model is made for."""
    tokens = run_largest_step(decoder, num_tokens, num_sequences, 16)
    assert len(tokens) == min(num_tokens, num_sequences)
    assert ((tokens >= 0) & (tokens < 100)).all()
