"""The decoders that a device can run: the Llama family and Qwen 2 and 3, read from a Hugging Face config.json.

The engine's own reading (:mod:`kvtwin.engine.sizing.hf_config`) says what the layers are; here is what remains to be
known before they can be computed, and what is refused because it would be computed wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.model_shape import ModelConfigError, ModelShape
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.rope import Rope, positive_number, read_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder whose layers are RMSNorm, causal attention with rope, RMSNorm, gated SiLU MLP, each half residual.

    ``num_query_heads`` is a multiple of ``num_kv_heads``; ``head_dim`` is even.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_tokens: int
    """The longest context the model is made for."""
    rope: Rope
    norm_epsilon: float
    tied_embeddings: bool
    """Whether the output head is the embedding matrix."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """Whether each query and key head is normalised before rope (Qwen3)."""
    dtype: str = "float32"
    """What the model computes in on a GPU: vLLM's choice for this config. A CPU computes in float32."""

    @property
    def query_size(self) -> int:
        """Values of all query heads of a token."""
        return self.num_query_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Values of all key heads of a token, and as many of its value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_matrix_values(self) -> int:
        """Values of all matrices; norms and biases are next to nothing."""
        attention = self.hidden_size * 2 * (self.query_size + self.key_value_size)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * (attention + mlp) + embeddings


TINY = DecoderConfig(
    name="tiny",
    num_layers=4,
    hidden_size=256,
    intermediate_size=688,
    num_query_heads=8,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=4096,
    max_position_tokens=8192,
    rope=Rope(theta=10000.0),
    norm_epsilon=1e-5,
    tied_embeddings=False,
)
"""A model that a laptop computes in milliseconds per step."""

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_MUST_BE_OFF = ("mlp_bias", "no_rope_layers")


def read_decoder_config(config: dict[str, Any], name: str) -> DecoderConfig:
    """The decoder of a config.json. DeviceError: one line with the model, the field and what was expected."""
    model_type = config.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise DeviceError(
            f"{name}: model_type must be one of {', '.join(_MODEL_TYPES)} to be executed, not {model_type!r}"
        )
    fields = Fields(config, name, str(model_type))
    try:
        shape = read_hf_config(config, name)
        heads = fields.integer("num_attention_heads")
        intermediate = fields.integer("intermediate_size")
    except ModelConfigError as error:
        raise DeviceError(str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DeviceError(
            f"{name}: config.json: a field is missing, or has a value that it cannot have: {error}"
        ) from None
    _refuse_other_layers(shape)
    spec = shape.layers[0].spec
    if heads % spec.num_kv_heads:
        raise DeviceError(
            f"{name}: num_attention_heads {heads} must be a multiple of num_key_value_heads {spec.num_kv_heads}"
        )
    if spec.head_size % 2:
        raise DeviceError(f"{name}: head_dim {spec.head_size} must be even, for rope turns pairs of values")
    if (activation := fields.first("hidden_act", "hidden_activation") or "silu") not in ("silu", "swish"):
        raise DeviceError(f"{name}: hidden_act must be silu to be executed, not {activation!r}")
    for key in _MUST_BE_OFF:
        if fields.get(key):
            raise DeviceError(f"{name}: {key} {fields.get(key)!r} cannot be executed")
    bias = bool(fields.get("attention_bias"))
    return DecoderConfig(
        name=name,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=intermediate,
        num_query_heads=heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        vocab_size=shape.vocab_size,
        max_position_tokens=shape.max_position_tokens,
        rope=read_rope(fields, spec.head_size),
        norm_epsilon=positive_number(fields.get("rms_norm_eps"), name, "rms_norm_eps", 1e-6),
        tied_embeddings=shape.tied_embeddings,
        qkv_bias=bias or model_type == "qwen2",
        output_bias=bias and model_type != "qwen2",
        qk_norm=model_type == "qwen3",
        dtype=shape.dtype,
    )


def _refuse_other_layers(shape: ModelShape) -> None:
    if shape.quantization is not None:
        raise DeviceError(f"{shape.name}: quantization_config {shape.quantization!r} cannot be executed; expected none")
    for index, layer in enumerate(shape.layers):
        spec = layer.spec
        has_window = spec.window_tokens is not None and spec.window_tokens < shape.max_position_tokens
        if spec.kind != "full_attention" and (spec.kind != "sliding_window" or has_window):
            kind = spec.kind.replace("_", " ")
            raise DeviceError(
                f"{shape.name}: layer {index} has {kind}, which cannot be executed; expected full attention"
            )
        if spec.is_latent:
            raise DeviceError(
                f"{shape.name}: kv_lora_rank (latent attention) cannot be executed; expected full attention"
            )
        if layer.num_experts:
            raise DeviceError(f"{shape.name}: layer {index} has {layer.num_experts} experts; expected a dense MLP")
