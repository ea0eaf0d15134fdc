"""Reading config.json: parameter counts against published totals, cache layers against the models' papers."""

import pytest

from kvtwin.engine.sizing.drafter import next_token_modules
from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.layer_spec import LayerSpec
from kvtwin.engine.sizing.model_shape import ModelConfigError, pipeline_layers
from kvtwin.engine.sizing.sparse_latent import cache_format
from kvtwin.experiments.catalogue.models import load_model, load_model_config

PUBLISHED_PARAMETERS = {
    "SmolLM2-135M": 134_515_008,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Llama-3.1-8B": 8_030_261_248,
    "NVIDIA-Nemotron-Nano-9B-v2": 8_888_227_328,
    "Qwen3-8B": 8_190_735_360,
    "gemma-3-4b-it": 3_880_263_168,
    "gemma-3-12b-it": 11_766_034_176,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
    "gemma-3-27b-it": 27_009_346_304,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Llama-3.1-70B": 70_553_706_496,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek-V3": 671_026_419_200,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def read(**fields):
    return read_hf_config({**LLAMA, **fields}, "test")


def kinds(shape):
    letters = {"full_attention": "F", "sliding_window": "W", "chunked_local_attention": "C", "mamba": "M", "mlp": "-"}
    return "".join(letters[layer.spec.kind] for layer in shape.layers)


def windows(shape):
    return {layer.spec.window_tokens for layer in shape.layers}


@pytest.mark.parametrize(("name", "total"), PUBLISHED_PARAMETERS.items())
def test_parameters_equal_the_published_total(name, total):
    assert load_model(name).total_params == total


@pytest.mark.parametrize(("name", "billions"), [("Mixtral-8x7B-v0.1", 12.9), ("gpt-oss-20b", 3.6), ("DeepSeek-V3", 37)])
def test_active_parameters_are_about_the_published_ones(name, billions):
    shape = load_model(name)
    assert (shape.active_params - shape.embedding_params) / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("head_dim", [None, 0])
def test_head_dim_falls_back_to_hidden_size_over_heads(head_dim):
    assert read(head_dim=head_dim).layers[0].spec.head_size == 16


def test_kv_heads_fall_back_to_query_heads():
    assert read().layers[0].spec.num_kv_heads == 4
    assert read(num_key_value_heads=2).layers[0].spec.num_kv_heads == 2


def test_nested_text_config_and_both_names_of_the_dtype():
    nested = {"model_type": "outer", "text_config": {**LLAMA, "dtype": "float16"}}
    assert read_hf_config(nested, "test").dtype == "float16"
    assert read(torch_dtype="float16").dtype == "float16"


def test_windows_of_the_families():
    assert kinds(load_model("gemma-3-12b-it")) == "WWWWWF" * 8
    assert kinds(load_model("gpt-oss-20b")) == "WF" * 12
    assert kinds(load_model("Mistral-7B-v0.1")) == "W" * 32
    assert windows(load_model("Mistral-7B-v0.1")) == {4096}
    assert kinds(load_model("Llama-4-Scout-17B-16E-Instruct")) == "CCCF" * 12
    assert kinds(load_model("Qwen3-Next-80B-A3B-Instruct")) == "MMMF" * 12
    nemotron = kinds(load_model("NVIDIA-Nemotron-Nano-9B-v2"))
    assert [nemotron.count(kind) for kind in "M-F"] == [27, 25, 4]


def test_a_window_that_is_not_used_does_not_count():
    unused = read(model_type="qwen2", sliding_window=256, use_sliding_window=False, max_window_layers=2)
    assert kinds(unused) == "FFFF"
    used = {"model_type": "qwen2", "sliding_window": 256, "use_sliding_window": True}
    assert kinds(read(**used)) == "FFFF"  # windows begin behind layer 28, unless max_window_layers says otherwise
    assert kinds(read(**used, max_window_layers=0)) == "WWWW"
    with pytest.raises(ModelConfigError, match="max_window_layers 2: vLLM serves windows in all 4 layers or in none"):
        read(**used, max_window_layers=2)


def test_layer_types_decide_where_they_are_given():
    shape = read(layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=99)
    assert kinds(shape) == "FWFW"
    assert windows(shape) == {None, 99}


def test_mla_keeps_one_latent_and_no_values():
    spec = load_model("DeepSeek-V3").layers[0].spec
    assert spec.token_bytes("auto", "bfloat16") == 576 * 2
    assert spec.token_bytes("fp8", "bfloat16") == 576
    assert spec.token_bytes("fp8_ds_mla", "bfloat16") == 656
    assert spec.on_rank(8) == spec


@pytest.mark.parametrize(
    ("model", "dtype", "compute_capability", "kept"),
    [
        ("DeepSeek-V3.2", "fp8", 9.0, "fp8_ds_mla"),
        ("DeepSeek-V3.2", "fp8", 0.0, "fp8_ds_mla"),
        ("DeepSeek-V3.2", "fp8_e4m3", 9.0, "fp8_e4m3"),
        ("DeepSeek-V3.2", "auto", 9.0, "auto"),
        ("DeepSeek-V3.2", "fp8", 10.0, "fp8"),
        ("DeepSeek-V3.2", "auto", 10.3, "auto"),
        ("DeepSeek-V3.2", "auto", 12.0, "fp8_ds_mla"),
        ("DeepSeek-V3", "fp8", 9.0, "fp8"),
    ],
)
def test_sparse_latents_are_kept_as_the_gpu_does(model, dtype, compute_capability, kept):
    assert cache_format(load_model(model), dtype, compute_capability) == kept


def test_compressed_latents():
    shape = load_model("DeepSeek-V4-Flash")
    caches = [[(spec.block_tokens, spec.window_tokens) for spec in shape.layers[index].specs] for index in (0, 2, 3)]
    window, latents, after_4, after_128 = (64, 128), (256, None), (4, 8), (8, 128)
    assert caches == [[window], [latents, after_4, window, latents, after_4], [window, latents, after_128]]
    assert 155e9 < shape.weight_bytes() < 157e9  # experts in mxfp4, the rest in fp8
    assert [spec.window_tokens for spec in next_token_modules(shape).shape.layers[0].specs] == [128]
    assert cache_format(shape, "auto", 9.0) == "fp8_ds_mla"
    with pytest.raises(ValueError, match="compressed latents are modelled in fp8_ds_mla only"):
        cache_format(shape, "bfloat16", 9.0)
    config = load_model_config("DeepSeek-V4-Flash")[0]
    with pytest.raises(ModelConfigError, match="compress_ratios has 8, not one of 0, 1, 4 and 128"):
        read_hf_config({**config, "compress_ratios": [8] * 44}, "test")


def test_glm_5_keeps_8_bits_on_data_centre_blackwell():
    fields = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "q_lora_rank": 64,
    }
    fields |= {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
    shape = read(model_type="glm_moe_dsa", **fields)
    assert cache_format(shape, "auto", 10.0) == "fp8_e4m3"
    assert cache_format(shape, "auto", 9.0) == "auto"
    assert cache_format(shape, "bfloat16", 10.0) == "bfloat16"


def test_layers_are_counted_where_no_field_states_their_number():
    states = {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 16, "conv_kernel": 4}
    shape = read(
        model_type="nemotron_h", num_hidden_layers=None, layers_block_type=["mamba", "attention"] * 3, **states
    )
    assert kinds(shape) == "MFMFMF"


def test_tensor_parallelism_divides_kv_heads_but_leaves_one():
    spec = LayerSpec("full_attention", 8, 128, 128)
    assert [spec.on_rank(tp).num_kv_heads for tp in (1, 2, 8, 16)] == [8, 4, 1, 1]
    with pytest.raises(ValueError, match="do not divide"):
        spec.on_rank(3)


def test_fp8_halves_attention_but_not_states():
    shape = load_model("Qwen3-Next-80B-A3B-Instruct")
    assert shape.token_bytes("fp8") * 2 == shape.token_bytes("auto")
    state = next(layer.spec for layer in shape.layers if layer.spec.kind == "mamba")
    assert state.sequence_state_bytes("bfloat16") == (3 * 8192 + 32 * 128 * 128) * 2


def test_weights_in_quantised_formats():
    assert load_model("gpt-oss-20b").weight_bytes() < 14 << 30
    with pytest.raises(ModelConfigError, match="quant_method 'magic' is not known"):
        read(quantization_config={"quant_method": "magic"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers must be a positive whole number"),
        ({"layer_types": ["recurrent"] * 4}, "'recurrent', not one of"),
        ({"layer_types": ["conv"] * 4}, "do not say how large a state is"),
        ({"torch_dtype": "int8"}, "'int8'"),
        ({"mamba_d_state": 16}, "mamba_d_state, which may change what layers keep"),
        ({"global_head_dim": 512}, "global_head_dim, which may change what layers keep"),
        ({"swa_head_dim": 192}, "swa_head_dim, which may change what layers keep"),
        ({"hybrid_override_pattern": "M-*-"}, "known of nemotron_h, not of 'llama'"),
        (
            {"hybrid_override_pattern": "M-*X", "model_type": "nemotron_h", "mamba_num_heads": 4},
            "mamba_head_dim|'X', not one of",
        ),
        ({"compress_ratios": [4, 128]}, "compress_ratios, which may change what layers keep"),
        ({"sparse_attention_config": {"use_sparse_attention": True}}, "sparse_attention_config, which may change what"),
        ({"attn_res_block_size": 12}, "attn_res_block_size, which may change what layers keep"),
        ({"layer_group_size": 8}, "layer_group_size, which may change what layers keep"),
        ({"attention_other_setting": {"num_attention_heads": 96}}, "attention_other_setting, which may change"),
        ({"attn_type_list": 4}, "attn_type_list must be a list, not 4"),
        ({"attn_type_list": [1, 1, 0, 1]}, "attn_type_list has linear attention"),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M-*-",
                "mamba_num_heads": 4,
                "mamba_head_dim": 16,
                "n_groups": 1,
                "ssm_state_size": 16,
                "conv_kernel": 4,
                "mamba_ssm_cache_dtype": "int3",
            },
            "mamba_ssm_cache_dtype 'int3' is not one of",
        ),
        ({"architectures": ["Zamba2ForCausalLM"]}, "Zamba2ForCausalLM has attention that several layers share"),
        ({"architectures": ["LongcatFlashNgramForCausalLM"]}, "LongcatFlashNgramForCausalLM has two attentions in one"),
        ({"architectures": ["Glm5NextForConditionalGeneration"]}, "an indexer beside linear attention, which is not"),
        ({"layer_types": ["indexed_attention"] * 4}, "'indexed_attention', not one of"),
        ({"num_attention_heads_per_layer": [8, 8]}, "num_attention_heads_per_layer has 2 entries for 4 layers"),
        ({"architectures": ["BertModel"]}, "BertModel is a pooling model"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"layer_types": ["sliding_attention"] * 4}, "no sliding_window"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(fields, message):
    with pytest.raises(ModelConfigError, match=message) as caught:
        read(**fields)
    assert "\n" not in str(caught.value)


def test_an_unknown_type_is_read_as_llama_and_says_so():
    assert "not known" in read(model_type="brandnew").notes[0]


def test_linear_scaling_enlarges_the_context_and_others_are_already_in_it():
    """vLLM 0.33 takes a length with YaRN's factor in it, and LongRoPE's original length unless told otherwise."""
    assert read(rope_scaling={"rope_type": "linear", "factor": 4.0}).max_position_tokens == 2048
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read(rope_scaling=yarn).max_position_tokens == 512
    assert read(rope_parameters={"rope_type": "llama3", "factor": 8.0}).max_position_tokens == 512
    long = read(rope_scaling={"type": "longrope"}, original_max_position_embeddings=64)
    assert (long.max_position_tokens, long.default_max_model_len) == (512, 64)


@pytest.mark.parametrize(
    ("layers", "ranks", "expected"),
    [
        (33, 2, [(0, 17), (17, 33)]),
        (10, 3, [(0, 3), (3, 7), (7, 10)]),
        (62, 4, [(0, 15), (15, 31), (31, 47), (47, 62)]),
    ],
)
def test_pipeline_layers(layers, ranks, expected):
    assert pipeline_layers(layers, ranks) == expected


def test_more_ranks_than_layers():
    with pytest.raises(ValueError, match="must be 1 to 4"):
        pipeline_layers(4, 5)


def test_the_vision_tower_of_gemma_4_is_as_large_as_the_one_of_transformers():
    """569,548,080 parameters in transformers' Gemma4VisionModel, with norms; beside it the projector."""
    model = load_model("gemma-4-26b-a4b-it")
    tower = model.vision.params - 1152 * model.hidden_size
    assert tower == pytest.approx(569_548_080, rel=3e-4)
    assert (model.vision.image_tokens, model.vision.image_patches) == (280, 2520)
