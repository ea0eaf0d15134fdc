"""What one layer keeps per token: the part of a model that the KV cache is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

LayerKind = Literal["full_attention", "sliding_window", "chunked_local_attention", "mamba", "mlp"]
"""Kinds of layers, those with a cache by vLLM's name; "mlp" is a layer that keeps nothing."""

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes per value of the model dtypes."""

_KV_CACHE_DTYPE_BYTES = {**DTYPE_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

KV_CACHE_DTYPES = ("auto", *_KV_CACHE_DTYPE_BYTES, "fp8_ds_mla")
"""Cache formats whose bytes per token are known; every other one is refused by name."""

_FP8_DS_MLA_TOKEN_BYTES = 656
"""DeepSeek's fp8 MLA format: 512 fp8 values, 4 float32 scales, 64 bfloat16 rope values (FlashMLA README)."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The cache of one layer on one rank.

    ``window_tokens`` is the sliding window or the attention chunk. A latent layer (MLA) keeps one vector of
    ``head_size`` values and no V, the same on every tensor-parallel rank. A Mamba or linear-attention layer
    keeps ``conv_values`` values of its convolution and ``ssm_values`` of its recurrence per sequence instead of
    per token, both divided by ``state_heads``. The convolution is ``conv_width`` channels wide, of which
    ``group_conv_width`` belong to each of ``state_groups`` groups of heads (Mamba 2); a rank has at least one group.
    Without a dtype of its own it takes the model's, the recurrence that of the convolution. ``fixed_token_bytes`` is
    the size of a token in a cache whose format no dtype changes, or of ``tokens_per_state`` tokens that are kept as
    one. A layer that ``shares_cache`` reads that of an earlier layer. ``block_tokens`` is the block size where the
    kernels leave no choice, and pages are then multiples of ``page_alignment_bytes``.
    """

    kind: LayerKind
    num_kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    window_tokens: int | None = None
    is_latent: bool = False
    conv_values: int = 0
    ssm_values: int = 0
    conv_width: int = 0
    state_heads: int = 1
    state_groups: int = 0
    group_conv_width: int = 0
    conv_dtype: str | None = None
    ssm_dtype: str | None = None
    fixed_token_bytes: int = 0
    tokens_per_state: int = 1
    block_tokens: int | None = None
    page_alignment_bytes: int = 1
    shares_cache: bool = False
    delta_key_size: int = 0
    """Gated delta nets and Kimi's: values of one key; 0 for other layers."""
    prefill_kernel: Literal["FlashInfer", "FlashKDA"] | None = None
    """What computes prompts on GPUs that have it, and leaves checkpoints where Triton's kernels do not."""
    prefill_checkpoint_alignment: int | None = None
    """States: a prompt's end can leave a checkpoint so many tokens, or a multiple, behind its chunk's start; None: not.
    See :mod:`kvtwin.engine.sizing.state_checkpoints`."""

    @property
    def has_cache(self) -> bool:
        """Whether the layer has a cache of its own."""
        return self.kind != "mlp" and not self.shares_cache

    def token_bytes(self, kv_cache_dtype: str, model_dtype: str) -> int:
        """Bytes that one token takes in this layer; 0 for a state layer.

        Specification, section 13.2: kv_heads * (head_size_k + head_size_v) * dtype bytes. ValueError: unknown dtype.
        """
        if self.fixed_token_bytes:
            return -(-self.fixed_token_bytes // self.tokens_per_state)
        if kv_cache_dtype == "fp8_ds_mla":
            if not self.is_latent or self.head_size != 576:
                raise ValueError("kv_cache_dtype fp8_ds_mla needs an MLA model with a latent of 512 + 64 values")
            return _FP8_DS_MLA_TOKEN_BYTES
        name = model_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        if name not in _KV_CACHE_DTYPE_BYTES:
            raise ValueError(f"kv_cache_dtype {name!r} is not known; known: {', '.join(KV_CACHE_DTYPES)}")
        return self.num_kv_heads * (self.head_size + self.head_size_v) * _KV_CACHE_DTYPE_BYTES[name]

    def page_bytes(self, block_size: int, kv_cache_dtype: str, model_dtype: str) -> int:
        """Bytes of a block of ``block_size`` tokens in this layer of attention. ValueError: unknown dtype."""
        if not self.fixed_token_bytes:
            return block_size * self.token_bytes(kv_cache_dtype, model_dtype)
        data_bytes = block_size // self.tokens_per_state * self.fixed_token_bytes
        return -(-data_bytes // self.page_alignment_bytes) * self.page_alignment_bytes

    def sequence_state_bytes(self, model_dtype: str, num_drafts: int = 0) -> int:
        """Bytes of a state layer's tensors for one sequence; 0 for attention.

        The convolution keeps one more input for each of ``num_drafts`` tokens that may be taken back.
        """
        conv_dtype = self.conv_dtype or model_dtype
        conv_values = self.conv_values + num_drafts * self.conv_width
        return conv_values * DTYPE_BYTES[conv_dtype] + self.ssm_values * DTYPE_BYTES[self.ssm_dtype or conv_dtype]

    def on_rank(self, tensor_parallel_size: int) -> LayerSpec:
        """This layer's share on one tensor-parallel rank.

        KV heads are divided, at least one on each rank; a latent is replicated; states are divided, where fewer groups
        than ranks are copied until each rank has one. ValueError: heads that do not divide evenly.
        """
        tp = tensor_parallel_size
        if tp == 1 or self.is_latent or self.kind == "mlp":
            return self
        if self.kind == "mamba":
            return self._state_on_rank(tp)
        if max(self.num_kv_heads, tp) % min(self.num_kv_heads, tp):
            raise ValueError(f"{self.num_kv_heads} KV heads do not divide by tensor parallel size {tp}")
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tp))

    def _state_on_rank(self, tp: int) -> LayerSpec:
        if self.state_heads % tp:
            raise ValueError(f"states of {self.state_heads} heads do not divide by tensor parallel size {tp}")
        copied_groups = tp - self.state_groups if self.state_groups % tp else 0
        conv_width = self.conv_width + copied_groups * self.group_conv_width
        if copied_groups < 0 or conv_width % tp:
            raise ValueError(f"states of {self.state_groups} groups do not divide by tensor parallel size {tp}")
        rows = self.conv_values // self.conv_width if self.conv_width else 0
        return replace(
            self,
            conv_values=rows * conv_width // tp,
            ssm_values=self.ssm_values // tp,
            conv_width=conv_width // tp,
            state_heads=self.state_heads // tp,
            state_groups=(self.state_groups + copied_groups) // tp,
        )
