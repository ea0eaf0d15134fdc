"""Images from a trace to the engine: what the command line makes of them."""

import json

import pytest

from kvtwin.engine.sizing.hf_images import keeps_images_whole, takes_images

SERVER = ["--gpu", "h200", "--max-model-len", "512", "--num-gpu-blocks-override", "2000"]
SERVER += ["--max-num-batched-tokens", "512"]
CAT = {"hash": "cat", "offset_tokens": 4, "length_tokens": 20}


def image(**changes):
    return {"images": [CAT | changes]}


@pytest.fixture
def replay(kvtwin):
    def summary(trace, *options):
        return json.loads(kvtwin("replay", trace, *SERVER, "--json", *options).out)

    return summary


@pytest.mark.parametrize(
    ("options", "size", "budget"),
    [
        (["--model", "gemma-3-4b-it"], 512, 512),
        (["--model", "Llama-3.1-8B"], 0, 0),
        (["--model", "Llama-3.1-8B", "--encoder-cache-size", "900"], 900, 900),
        (["--model", "gemma-3-4b-it", "--encoder-cache-size", "30"], 30, 512),
        (["--model", "gemma-3-4b-it", "--max-num-encoder-input-tokens", "64"], 512, 64),
        (["--model", "gemma-3-4b-it", "--encoder-cache-size", "0"], 0, 0),
    ],
)
def test_the_encoder_is_as_large_as_vllm_makes_it(replay, native, options, size, budget):
    summary = replay(native(image(), image()), *options)
    assert (summary["encoder_cache_size"], summary["max_num_encoder_input_tokens"]) == (size, budget)
    assert summary["encoded_images"] == summary["cached_images"] == (1 if size else 0)
    assert summary["encoded_embeddings"] == (20 if size else 0)


def test_text_positions_need_no_embedding(replay, native):
    summary = replay(native(image(text_positions=[0, 19])), "--model", "gemma-3-4b-it")
    assert summary["encoded_embeddings"] == 18


def test_what_is_printed(kvtwin, native):
    printed = kvtwin("replay", native(image(), image(), {}), *SERVER, "--model", "gemma-3-4b-it").out
    assert "Images encoded / found in encoder cache: 1 / 1\n" in printed
    assert "  embeddings:                            20 / 20\n" in printed
    assert "Images" not in kvtwin("replay", native({}), *SERVER, "--model", "gemma-3-4b-it").out


@pytest.mark.parametrize("strict", [[], ["--vllm-strict"]])
def test_an_image_larger_than_the_cache_is_refused_as_the_front_end_does(replay, native, strict):
    options = ["--model", "gemma-3-4b-it", "--encoder-cache-size", "19", *strict]
    summary = replay(native(image(), image(text_positions=[3])), *options)
    assert summary["rejected_by_reason"] == {"image > encoder cache": 1}
    assert (summary["completed"], summary["encoded_images"]) == (1, 1)


def test_two_images_under_one_hash(replay, native):
    summary = replay(native(image(), image(length_tokens=19)), "--model", "gemma-3-4b-it")
    assert summary["rejected_by_reason"] == {"two images under one hash": 1}
    assert summary["completed"] == 1


def test_why_a_request_with_an_image_waits(kvtwin, native):
    """A step takes eight tokens of a request, so the first one's image is held for three steps."""
    rows = [{"arrival_ns": 0, "images": [{"hash": name, "offset_tokens": 0, "length_tokens": 20}]} for name in "ab"]
    options = ["--model", "gemma-3-4b-it", "--encoder-cache-size", "20", "--long-prefill-token-threshold", "8"]
    trace = native(*rows)
    told = kvtwin("explain", trace, "--request", "r1", *SERVER, *options, "--model", "Llama-3.1-8B").out
    assert "its next image finds no room in the encoder cache, or no compute budget left in the step" in told


def test_whole_images_and_cached_states_exclude_each_other(kvtwin, native):
    options = ["--model", "Qwen3-Next-80B-A3B-Instruct", "--tensor-parallel-size", "2", "--disable-chunked-mm-input"]
    gpu = ["--gpu", "h200", "--max-model-len", "2048"]
    kvtwin("replay", native({}), *gpu, *options, "--enable-prefix-caching").complains(
        "--disable-chunked-mm-input: states are cached, and their chunks may end inside an image"
    )


@pytest.mark.parametrize(
    ("config", "takes", "whole"),
    [
        ({"model_type": "gemma3", "vision_config": {"hidden_size": 1}}, True, True),
        ({"model_type": "gemma3_text"}, False, False),
        ({"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1}}, True, False),
        ({"model_type": "llava", "vision_config": {"hidden_size": 1}, "is_mm_prefix_lm": True}, True, True),
        ({"model_type": "paligemma", "vision_config": {"hidden_size": 1}, "is_mm_prefix_lm": False}, True, False),
        ({"model_type": "deepseek_v4", "vision_n_layers": 12}, True, True),
        ({"model_type": "deepseek_v4", "vision_n_layers": 0}, False, False),
        ({"model_type": "llama"}, False, False),
    ],
)
def test_models_that_keep_images_whole(config, takes, whole):
    assert (takes_images(config), keeps_images_whole(config)) == (takes, whole)
