"""What the real vLLM makes of a config.json: runs under the oracle's own interpreter.

    ask_models.py CASES.json

CASES.json is a list of cases, each a ``config`` (the values of a config.json) and a ``server`` (see ``SERVER``). Every
case gets an ``answer``, and the file is written again: the caches that vLLM's own model class makes (layers are built
on torch's "meta" device, so without weights or memory), the block size that vLLM's platform code chooses, the groups,
blocks and concurrency of vLLM's planner, and the number of parameters of the model; or vLLM's refusal.

Faked are kernels, which have no say in sizes: attention back ends with blocks of a multiple of 16 tokens (64 for latent
attention), experts as bare parameters, a tensor-parallel group that knows its size but has no other members, and where
a server has a ``compute_capability`` the GPU's. Images are left out: the language model of a multimodal one is asked.
Two Python packages more than the oracle's own are needed:
``pip install --no-deps --target FOLDER compressed-tensors loguru``, and FOLDER in PYTHONPATH.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "oracle"), os.environ["VLLM_ORACLE_SRC"]]

SERVER = {
    "available_bytes": 16 << 30,
    "max_model_len": None,
    "max_num_batched_tokens": 8192,
    "async_scheduling": True,
    "enable_prefix_caching": True,
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
    "kv_cache_layout": "LBNHC",
    "compute_capability": None,
}

TEXT_ARCHITECTURES = {
    "gemma3": "Gemma3ForCausalLM",
    "gemma3n": "Gemma3nForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "glm4v": "Glm4ForCausalLM",
    "glm4v_moe": "Glm4MoeForCausalLM",
    "glm_ocr": "Glm4ForCausalLM",
    "llama4": "Llama4ForCausalLM",
    "mistral3": "MistralForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "qwen3_vl": "Qwen3ForCausalLM",
    "qwen3_vl_moe": "Qwen3MoeForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "kimi_k25": "DeepseekV3ForCausalLM",
    "kimi_k3": "KimiLinearForCausalLM",
    "minimax_m3_vl": "MiniMaxM3SparseForCausalLM",
    "step3p7": "Step3p5ForCausalLM",
}
"""The language models of multimodal ones."""

STAY_NESTED = ("minimax_m3_vl",)
"""Those whose language model is made from the whole configuration."""


class _AnyAttribute(type):
    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


class _Stub(types.ModuleType):
    """A module that is not installed and of which nothing is called."""

    __path__ = ()

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything(name)


def _anything(name: str) -> type:
    return _AnyAttribute(name, (), {"__init__": lambda self, *args, **values: None})


class _StubFinder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torchvision", "cutlass", "cuda", "quack"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        pass


import vllm.model_executor.models.registry as registry  # noqa: E402
import vllm_oracle  # noqa: E402

V = vllm_oracle.import_vllm()
import torch  # noqa: E402

sys.meta_path.append(_StubFinder())  # after transformers has looked for what is installed

registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())


def fake_kernels() -> None:
    """Replace what needs a GPU or compiled code by classes that only know sizes."""
    import vllm.model_executor.layers.attention.mla_attention as latent_attention
    import vllm.v1.attention.backend as backend
    import vllm.v1.attention.backends.fa_utils as flash_attention
    from torch import nn
    from vllm.platforms import current_platform

    class Kernel:
        supports_quant_query_input = False
        dcp_world_size = 1
        pcp_world_size = 1

        def __init__(self, *args, **values) -> None:
            pass

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)

    class Backend(backend.AttentionBackend):
        kernel_block_sizes = (backend.MultipleOf(16),)
        name = "FLASH_ATTN"

        @classmethod
        def get_name(cls):
            return cls.name

        @staticmethod
        def get_impl_cls():
            return Kernel

        @staticmethod
        def get_builder_cls():
            return backend.AttentionMetadataBuilder

        @staticmethod
        def get_kv_cache_shape(*args, **values):
            return (1,)

        @classmethod
        def get_supported_kernel_block_sizes(cls, *args, **values):
            return list(cls.kernel_block_sizes)

        @classmethod
        def set_head_size_v(cls, size):
            pass

    class LatentBackend(Backend):
        kernel_block_sizes = (64,)
        name = "FLASHMLA"

        @classmethod
        def is_mla(cls):
            return True

    class SparseBackend(LatentBackend):
        name = "FLASHMLA_SPARSE"

        @classmethod
        def is_sparse(cls):
            return True

    class Experts(nn.Module):
        moe_config = types.SimpleNamespace(
            skip_final_all_reduce=False, num_logical_experts=1, num_experts=1, num_local_experts=1
        )

        def __init__(self, *args, activation="silu", has_bias=False, **values):
            super().__init__()
            names = ("num_experts", "top_k", "hidden_size", "intermediate_size")
            values |= dict(zip(names, args, strict=False))
            num_experts, hidden_size = values["num_experts"], values["hidden_size"]
            intermediate_size = values["intermediate_size"]
            up = intermediate_size * (1 if "no_mul" in str(activation) else 2)
            shapes = {"up": (up, hidden_size), "down": (hidden_size, intermediate_size)}
            if has_bias:
                shapes |= {"up_bias": (up,), "down_bias": (hidden_size,)}
            for name, shape in shapes.items():
                self._parameters[name] = nn.Parameter(torch.empty(num_experts, *shape), requires_grad=False)
            if isinstance(bias := values.get("e_score_correction_bias"), nn.Parameter):
                self._parameters["bias"] = bias

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):
                    raise

    def get_attn_backend(head_size, dtype, kv_cache_dtype, use_mla=False, has_sink=False, use_sparse=False, **values):
        return SparseBackend if use_sparse else LatentBackend if use_mla else Backend

    for name in ("attention.attention", "fused_moe.layer"):
        importlib.import_module(f"vllm.model_executor.layers.{name}")
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 1.0 if self.is_meta else item(self)
    type(current_platform).current_device = classmethod(lambda cls: "meta")
    type(current_platform).device_type = "meta"
    torch.cuda.Stream = torch.cuda.Event = Kernel
    importlib.import_module("vllm.triton_utils").triton.set_allocator = _nothing_to_call("set_allocator")
    flash_attention.__getattr__ = _nothing_to_call
    prefill = importlib.import_module("vllm.v1.attention.backends.mla.prefill")
    prefill.get_mla_prefill_backend = latent_attention.get_mla_prefill_backend = lambda *args, **values: Kernel
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm."):
            for attribute, fake in (("get_attn_backend", get_attn_backend), ("FusedMoEFactory", Experts)):
                if attribute in vars(module):
                    setattr(module, attribute, fake)


def _nothing_to_call(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **values: None


def language_config(config: dict) -> dict:
    """The language model alone, without quantisation and rope scaling, which have no say in the caches' layout."""
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    text = config.get("text_config")
    if config["model_type"] in STAY_NESTED:
        config |= {"architectures": [TEXT_ARCHITECTURES[config["model_type"]]]}
    elif isinstance(text, dict):
        outer = {key: config[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in config}
        config = {**outer, **text, "architectures": [TEXT_ARCHITECTURES[config["model_type"]]]}
    elif config["model_type"] == "qwen2_5_vl":
        config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    config.pop("quantization_config", None)
    config.pop("rope_parameters", None)
    if config.get("model_type") == "gpt_oss":
        config["rope_scaling"] = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False} | config["rope_scaling"]
    else:
        config.pop("rope_scaling", None)
    return config


def vllm_config(config: dict, server: dict):
    """vLLM's configuration of a server of this model."""
    from vllm.utils.torch_utils import resolve_kv_cache_dtype_string

    folder = tempfile.mkdtemp()
    (Path(folder) / "config.json").write_text(json.dumps(language_config(config)))
    model = V.ModelConfig(
        model=folder,
        tokenizer=folder,
        skip_tokenizer_init=True,
        max_model_len=server["max_model_len"],
        enforce_eager=True,
        dtype="auto",
    )
    if (
        config.get("model_type") == "bailing_hybrid"
    ):  # a class that comes with the file keeps it; transformers' does not
        model.hf_config.head_dim = config["head_dim"]
    layer_types = getattr(model.hf_text_config, "layer_types", None)
    in_windows = layer_types is None or all(kind == "sliding_attention" for kind in layer_types)
    cache = V.CacheConfig(
        enable_prefix_caching=server["enable_prefix_caching"],
        cache_dtype=resolve_kv_cache_dtype_string(server["kv_cache_dtype"], model),
        sliding_window=model.get_sliding_window() if in_windows else None,
    )
    scheduler = V.SchedulerConfig(
        max_model_len=model.max_model_len,
        is_encoder_decoder=False,
        max_num_batched_tokens=server["max_num_batched_tokens"],
        max_num_seqs=128,
        async_scheduling=server["async_scheduling"],
    )
    config_of_all = V.VllmConfig(
        model_config=model,
        cache_config=cache,
        parallel_config=V.ParallelConfig(),
        scheduler_config=scheduler,
        device_config=V.DeviceConfig(device="cpu"),
    )
    config_of_all.scheduler_config.disable_hybrid_kv_cache_manager = False
    config_of_all.cache_config.kv_cache_layout = server["kv_cache_layout"]
    config_of_all.parallel_config.tensor_parallel_size = server["tensor_parallel_size"]
    return config_of_all


def make_groups(tensor_parallel_size: int) -> None:
    """Tensor- and expert-parallel groups of one process that believes to be the first of several."""
    import vllm.distributed.parallel_state as state
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    if state._TP is None:
        port = 20000 + os.getpid() % 20000
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        initialize_model_parallel(1, 1)
        state._EP = state._EP or state._PP
    state._TP.world_size = tensor_parallel_size


def answer(case: dict) -> dict:
    """The caches, groups and blocks of one case."""
    from vllm.config import set_current_vllm_config
    from vllm.config.vllm import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability, Platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
    from vllm.v1.kv_cache_interface import iter_layer_specs

    server = SERVER | case.get("server", {})
    if server["compute_capability"]:
        capability = DeviceCapability(*server["compute_capability"])
        type(current_platform).get_device_capability = classmethod(lambda cls, device_id=0: capability)
    config = vllm_config(case["config"], server)
    with set_current_vllm_config(config):
        make_groups(server["tensor_parallel_size"])
        model_class, _ = registry.ModelRegistry.resolve_model_cls(
            config.model_config.architectures, config.model_config
        )
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = model_class(vllm_config=config, prefix="")
        Platform.update_block_size_for_backend.__func__(Platform, config)
        specs = {
            name: spec
            for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
            and (spec := layer.get_kv_cache_spec(config)) is not None
        }
        names = list(specs)
        groups = planning.get_global_kv_cache_groups(config, [specs])
        plan = planning.get_kv_cache_configs(config, [specs], [server["available_bytes"]], groups)[0]
        capacity, concurrency = get_kv_cache_capacity(config, plan)
    return {
        "model_class": model_class.__name__,
        "parameters": sum({id(p): p.numel() for p in model.parameters()}.values()),
        "max_model_len": config.model_config.max_model_len,
        "num_blocks": plan.num_blocks,
        "capacity_tokens": capacity,
        "max_concurrency": concurrency,
        "groups": [
            {
                "kind": type(next(iter(iter_layer_specs(group.kv_cache_spec)))).__name__,
                "block_size": group.kv_cache_spec.block_size,
                "page_bytes": sorted({spec.page_size_bytes for spec in iter_layer_specs(group.kv_cache_spec)}),
                "window_tokens": getattr(group.kv_cache_spec, "sliding_window", None),
                "checkpoints": getattr(group.kv_cache_spec, "num_prefill_checkpoint_blocks", 0),
                "layers": [names.index(name) for name in group.layer_names],
            }
            for group in plan.kv_cache_groups
        ],
    }


def main() -> int:
    path = Path(sys.argv[1])
    cases = json.loads(path.read_text())
    only = set(sys.argv[2:])
    fake_kernels()
    for case in cases:
        if only and case["name"] not in only:
            continue
        try:
            case["answer"] = answer(case)
            print(f"{case['name']}: {case['answer']['num_blocks']} blocks")
        except Exception as error:
            case["answer"] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
            print(f"{case['name']}: {case['answer']['error']}")
    path.write_text("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
