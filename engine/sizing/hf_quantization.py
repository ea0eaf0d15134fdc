"""How a checkpoint is quantised: bytes per parameter, the modules that are left out, and the dtype of the KV cache.

Every method writes bits and group size into ``quantization_config`` under names of its own. A group of weights has one
scale, of 16 bits where nothing else is said, and a zero point of the weights' bits where it is asymmetric.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.model_shape import ModelConfigError

SCALE_BYTES = 2
"""A group's scale in the model's dtype."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantisation of a checkpoint.

    ``method`` is vLLM's name of it. ``bytes_of(module)`` is the size of a parameter of a module, by the module's full
    name, or None where it is left out. ``kv_cache_dtype`` is what "auto" becomes; None: the model's dtype.
    """

    method: str
    bytes_of: Callable[[str], float | None]
    kv_cache_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def mean_bytes(self, modules: list[str], otherwise: float) -> float:
        """The mean size of a parameter of these modules; ``otherwise`` counts for those that are left out."""
        sizes = [self.bytes_of(module) for module in modules]
        return sum(otherwise if size is None else size for size in sizes) / len(sizes)


def read_quantization(config: Mapping[str, Any], name: str) -> Quantization | None:
    """The quantisation in a config.json; None without one. ModelConfigError: one that is not known."""
    fields = Fields(config, name, "")
    text = config.get("text_config")
    for key in ("quantization_config", "compression_config"):
        found = fields.mapping(key)
        if not found.stated() and isinstance(text, dict):
            found = Fields(text, name, "").mapping(key)
        if found.stated():
            quantization = _read(found)
            is_fp4 = config.get("model_type") == "deepseek_v4" and config.get("expert_dtype") in (None, "fp4")
            return _with_fp4_experts(quantization) if is_fp4 and quantization.method == "fp8" else quantization
    return None


def _with_fp4_experts(quantization: Quantization) -> Quantization:
    """DeepSeek-V4's "fp8": its experts are in mxfp4, unless ``expert_dtype`` says otherwise."""
    size, bytes_of = _floating_4_bits("mxfp4"), quantization.bytes_of
    return replace(quantization, bytes_of=lambda module: size if ".experts." in module else bytes_of(module))


def _read(fields: Fields) -> Quantization:
    method = _method(fields)
    readers = {
        "awq": _groups_of_bits,
        "gptq": _groups_of_bits,
        "inc": _groups_of_bits,
        "moe_wna16": _groups_of_bits,
        "fp8": _fp8,
        "deepseek_v4_fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "mxfp8": lambda fields: _everywhere(fields, 1 + 1 / 32),
        "fp_quant": lambda fields: _everywhere(fields, _floating_4_bits(str(fields.get("forward_dtype")))),
        "mxfp4": lambda fields: _experts_only(fields, _floating_4_bits("mxfp4")),
        "experts_int8": lambda fields: _experts_only(fields, 1.0),
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
        "quark": _quark,
        "torchao": _torchao,
        "bitsandbytes": _bitsandbytes,
        "hqq": _hqq,
    }
    if method not in readers:
        raise ModelConfigError(
            f"{fields.name}: quant_method {method!r} is not known, so the size of the weights is not either; known: "
            f"{', '.join(readers)}"
        )
    return Quantization(method, readers[method](fields), _kv_cache_dtype(fields, method), _notes(method))


_SAME_METHOD = {
    "compressed_tensors": "compressed-tensors",
    "auto_awq": "awq",
    "awq_marlin": "awq",
    "auto_gptq": "gptq",
    "gptq_marlin": "gptq",
    "marlin": "gptq",
    "auto-round": "inc",
    "auto_round": "inc",
    "intel/auto-round": "inc",
    "gpt_oss_mxfp4": "mxfp4",
    "modelopt_fp4": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "modelopt_mixed": "modelopt",
    "fp8_per_tensor": "fp8",
    "fp8_per_channel": "fp8",
    "fp8_per_block": "fp8",
}


def same_method(one: str, other: str) -> bool:
    """Whether two of vLLM's names mean the same quantisation."""
    return _SAME_METHOD.get(one.lower(), one.lower()) == _SAME_METHOD.get(other.lower(), other.lower())


def _method(fields: Fields) -> str:
    method = fields.get("quant_method")
    if method is None and (fields.has("quant_algo") or fields.mapping("quantization").has("quant_algo")):
        return "modelopt"
    if not isinstance(method, str):
        raise ModelConfigError(f"{fields.name}: quant_method must be a name, not {method!r}")
    return _SAME_METHOD.get(method.lower(), method.lower())


def _notes(method: str) -> tuple[str, ...]:
    if method in ("bitsandbytes", "hqq"):
        return (f"vLLM 0.33 itself loads no {method} checkpoints: this needs a plugin",)
    return ()


def _kv_cache_dtype(fields: Fields, method: str) -> str | None:
    """What the checkpoint asks for: vLLM takes 8-bit floating point for any scheme of compressed-tensors."""
    if method == "compressed-tensors":
        return "fp8" if fields.mapping("kv_cache_scheme").stated() else None
    if method != "modelopt":
        return None
    inner = fields.mapping("quantization") if fields.has("quantization") else fields
    scheme = inner.first("kv_cache_scheme") or fields.first("kv_cache_scheme")
    scheme = scheme or inner.first("kv_cache_quant_algo") or fields.first("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        is_float, bits = scheme.get("type") == "float", scheme.get("num_bits")
        if is_float and bits == 8 and scheme.get("dynamic") is False:
            return "fp8"
        return "nvfp4" if is_float and bits == 4 else None
    if isinstance(scheme, str):
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(scheme.lower())
    return None


def _left_out(fields: Fields, *keys: str) -> Callable[[str], bool]:
    """Whether a module is in the file's list of modules that are left out: a name, a part of one, or a pattern."""
    entries = fields.first(*keys) or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ModelConfigError(f"{fields.name}: {keys[0]} must be a list of module names, not {entries!r}"[:200])
    return lambda module: any(_matches(entry, module) for entry in entries)


_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "backbone.")


def _matches(entry: str, module: str) -> bool:
    """Whether ``module``, such as "model.layers.0.mlp.up_proj", is what ``entry`` names, or is inside it."""
    names = [prefix + module.removeprefix("model.") for prefix in _PREFIXES]
    if entry.startswith("re:"):
        try:
            return any(re.match(entry[3:], name) for name in names)
        except re.error:
            return False
    if "*" in entry:
        return any(fnmatch.fnmatch(name, pattern) for name in names for pattern in (entry, f"*.{entry}", f"{entry}.*"))
    for prefix in _PREFIXES:
        entry = entry.removeprefix(prefix)
    return bool(entry.strip(".")) and f".{entry.strip('.')}." in f".{module}."


def _everywhere(fields: Fields, size: float) -> Callable[[str], float | None]:
    """One size for every linear module that is not left out."""
    left_out = _left_out(fields, "modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude")
    has_head = fields.flag("lm_head")
    return lambda module: None if left_out(module) or (module == "lm_head" and not has_head) else size


def _experts_only(fields: Fields, size: float) -> Callable[[str], float | None]:
    left_out = _left_out(fields, "modules_to_not_convert", "ignored_layers")
    return lambda module: size if ".experts." in module and not left_out(module) else None


def _bits_with_groups(bits: float, group_size: int, has_zero_point: bool, scale_bytes: float = SCALE_BYTES) -> float:
    """Bytes of one weight with its share of the group's scale and zero point; -1 or 0: one group per channel."""
    shared = scale_bytes + (bits / 8 if has_zero_point else 0)
    return bits / 8 + (shared / group_size if group_size > 0 else 0.0)


def _groups_of_bits(fields: Fields) -> Callable[[str], float | None]:
    bits = _bits(fields, "bits", "w_bit")
    group_size = _group_size(fields, "group_size", "q_group_size")
    size = _bits_with_groups(bits, group_size, fields.flag("zero_point") or fields.get("sym") is False)
    sizes = _everywhere(fields, size)
    dynamic = fields.mapping("dynamic")  # GPTQModel: "-:pattern" leaves modules out, "+:pattern" changes their bits
    extra = fields.mapping("extra_config")  # AutoRound: modules with bits of their own

    def bytes_of(module: str) -> float | None:
        for pattern in dynamic.stated():
            if _matches("re:" + pattern.removeprefix("-:").removeprefix("+:"), module):
                if pattern.startswith("-:"):
                    return None
                own = dynamic.mapping(pattern)
                return _bits_with_groups(
                    own.count("bits") or bits,
                    own.count("group_size") or group_size,
                    own.get("sym") is False,
                )
        for pattern in extra.stated():
            if _matches(pattern, module) or _matches(f"re:{pattern}", module):
                own_bits = extra.mapping(pattern).count("bits") or bits
                return None if own_bits >= 16 else _bits_with_groups(own_bits, group_size, fields.get("sym") is False)
        return sizes(module)

    return bytes_of


def _bits(fields: Fields, *keys: str) -> int:
    bits = fields.integer(*keys)
    if bits > 16:
        raise ModelConfigError(f"{fields.name}: {keys[0]} must be 1 to 16, not {bits}")
    return bits


def _group_size(fields: Fields, *keys: str) -> int:
    value = fields.first(*keys)
    if value in (None, -1):
        return -1
    return fields.integer(*keys)


def _fp8(fields: Fields) -> Callable[[str], float | None]:
    return _everywhere(fields, _block_scaled_fp8(fields, "weight_block_size"))


def _block_scaled_fp8(fields: Fields, key: str) -> float:
    """One byte, and a float32 scale per block of weights; a scale per tensor or channel is not worth counting."""
    block = fields.get(key)
    if block is None:
        return 1.0
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise ModelConfigError(f"{fields.name}: {key} must be two positive whole numbers, not {block!r}")
    return float(1 + 4 / (block[0] * block[1]))


def _floating_4_bits(kind: str) -> float:
    """OCP MX: 32 values of 4 bits share a scale of 8 bits; NVFP4: 16."""
    return 0.5 + 1 / (32 if kind.startswith("mx") else 16)


def _compressed_tensors(fields: Fields) -> Callable[[str], float | None]:
    left_out = _left_out(fields, "ignore")
    groups = []
    config_groups = fields.mapping("config_groups")
    for name in config_groups.stated():
        group = config_groups.mapping(name)
        kind = str(group.get("format") or fields.get("format") or "")
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise ModelConfigError(f"{group.name}: targets must be a list of names, not {targets!r}")
        groups.append((targets, _compressed_group(group.mapping("weights"), kind)))

    def bytes_of(module: str) -> float | None:
        if left_out(module) or module == "lm_head":
            return None
        named = [size for targets, size in groups if any(_matches(target, module) for target in targets)]
        general = [size for targets, size in groups if "Linear" in targets]
        return next(iter(named + general), None)

    return bytes_of


def _compressed_group(weights: Fields, kind: str) -> float | None:
    if not weights.stated():
        return None
    bits = _bits(weights, "num_bits")
    if bits == 16:
        return None
    if weights.get("type") == "float" and bits == 4:
        return _floating_4_bits("mx" if "mxfp4" in kind or weights.get("group_size") == 32 else "nv")
    if weights.get("type") == "float" and weights.get("group_size") == 32:
        return 1 + 1 / 32  # MXFP8
    if weights.get("strategy") == "block":
        return _block_scaled_fp8(weights, "block_structure")
    return _bits_with_groups(bits, _group_size(weights, "group_size"), weights.get("symmetric") is False)


def _modelopt(fields: Fields) -> Callable[[str], float | None]:
    inner = fields.mapping("quantization") if fields.has("quantization") else fields
    group_size = _group_size(inner, "group_size")
    algorithm = str(inner.get("quant_algo") or "").upper()
    left_out = _left_out(inner, "exclude_modules", "ignore")
    if algorithm != "MIXED_PRECISION":
        size = _modelopt_bytes(inner, algorithm, group_size)
        return lambda module: None if left_out(module) or module == "lm_head" else size
    layers = inner.mapping("quantized_layers")
    sizes = {
        name: _modelopt_bytes(
            layers.mapping(name),
            str(layers.mapping(name).get("quant_algo") or "").upper(),
            _group_size(layers.mapping(name), "group_size"),
        )
        for name in layers.stated()
    }

    def bytes_of(module: str) -> float | None:
        found = [size for name, size in sizes.items() if _matches(name, module) or name.startswith(f"{module}.")]
        return found[0] if found else None

    return bytes_of


def _modelopt_bytes(fields: Fields, algorithm: str, group_size: int) -> float:
    sizes = {
        "FP8": 1.0,
        "FP8_PER_CHANNEL_PER_TOKEN": 1.0,
        "FP8_PB_WO": 1 + 4 / (128 * 128),
        "MXFP8": 1 + 1 / 32,
        "NVFP4": 0.5 + 1 / (group_size if group_size > 0 else 16),
        "W4A16_NVFP4": 0.5 + 1 / (group_size if group_size > 0 else 16),
        "NVFP4_AWQ": 0.5 + 1 / (group_size if group_size > 0 else 16),
        "W4A16_AWQ": _bits_with_groups(4, group_size, has_zero_point=False),
        "W4A8_AWQ": _bits_with_groups(4, group_size, has_zero_point=False),
        "W8A8_SQ_PER_CHANNEL": 1.0,
        "W8A16": 1.0,
        "MXFP4": _floating_4_bits("mx"),
    }
    if algorithm not in sizes:
        raise ModelConfigError(f"{fields.name}: quant_algo {algorithm!r} is not one of {', '.join(sizes)}")
    return sizes[algorithm]


def _quark(fields: Fields) -> Callable[[str], float | None]:
    left_out = _left_out(fields, "exclude")
    general = _quark_bytes(fields.mapping("global_quant_config"))
    own = fields.mapping("layer_quant_config")
    sizes = {pattern: _quark_bytes(own.mapping(pattern)) for pattern in own.stated()}

    def bytes_of(module: str) -> float | None:
        if left_out(module):
            return None
        return next((size for pattern, size in sizes.items() if _matches(pattern, module)), general)

    return bytes_of


def _quark_bytes(config: Fields) -> float | None:
    weight = config.get("weight")
    if isinstance(weight, list):
        weight = weight[0] if weight else None
    if weight is None:
        return None
    if not isinstance(weight, dict):
        raise ModelConfigError(f"{config.name}: weight must be an object, not {weight!r}"[:200])
    fields = Fields(weight, f"{config.name}: weight", "")
    kind = str(fields.get("dtype") or "")
    group_size = _group_size(fields, "group_size") if fields.get("qscheme") == "per_group" else -1
    if kind.startswith("fp4"):
        return 0.5 + 1 / (group_size if group_size > 0 else 32)
    digits = re.search(r"\d+", kind)
    if not digits or not 1 <= int(digits[0]) <= 16:
        raise ModelConfigError(f"{fields.name}: dtype {kind!r} is not known")
    if kind.startswith(("bfloat", "float")):
        return None
    return _bits_with_groups(int(digits[0]), group_size, fields.get("symmetric") is False)


_TORCHAO_BITS = {"int4": 4, "uint4": 4, "int8": 8, "float8": 8, "fp8": 8, "nvfp4": 4, "mxfp4": 4, "mxfp8": 8}


def _torchao(fields: Fields) -> Callable[[str], float | None]:
    kinds = fields.get("quant_type")
    if isinstance(kinds, dict):
        kinds = kinds.get("default")
    group_size = 128
    name = kinds
    if isinstance(kinds, dict):
        inner = Fields(kinds, fields.name, "")
        name = inner.get("_type")
        data = inner.mapping("_data")
        group_size = _group_size(data, "group_size") if data.has("group_size") else 128
    text = str(name).lower().replace("_", "")
    bits = next((bits for key, bits in _TORCHAO_BITS.items() if key in text), None)
    if bits is None:
        raise ModelConfigError(f"{fields.name}: quant_type {name!r} is not known; known: {', '.join(_TORCHAO_BITS)}")
    if "int4" in text:  # a scale and a zero point of 16 bits per group
        return _everywhere(fields, 0.5 + 2 * SCALE_BYTES / group_size if group_size > 0 else 0.5)
    if "fp4" in text:
        return _everywhere(fields, _floating_4_bits("mx" if "mx" in text else "nv"))
    return _everywhere(fields, bits / 8)


def _bitsandbytes(fields: Fields) -> Callable[[str], float | None]:
    """Four bits with a scale per 64 weights, of 32 bits, or of 8 where the scales are quantised too (QLoRA)."""
    left_out = _left_out(fields, "llm_int8_skip_modules")
    scale_bytes = 1 if fields.flag("bnb_4bit_use_double_quant") else 4
    size = 1.0 if fields.flag("load_in_8bit") else _bits_with_groups(4, 64, False, scale_bytes)
    return lambda module: None if left_out(module) or module == "lm_head" else size


def _hqq(fields: Fields) -> Callable[[str], float | None]:
    weights = fields.mapping("quant_config").mapping("weight_quant_params")
    bits = _bits(weights, "nbits")
    group_size = _group_size(weights, "group_size")
    shared = 2 * SCALE_BYTES / group_size if group_size > 0 else 0.0
    left_out = _left_out(fields, "skip_modules")
    return lambda module: None if left_out(module) or module == "lm_head" else bits / 8 + shared
