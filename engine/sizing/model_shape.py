"""A model as sizes: what its layers keep in the cache, how many weights they have and a token uses."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, LayerSpec
from kvtwin.engine.sizing.vision_tower import VisionTower

EXPERT_WIDTH_TILE, EXPERT_HIDDEN_TILE = 128, 256
"""What vLLM rounds the sizes of mxfp4 experts up to, with all kernels but Triton's, which Hopper has: they pad less."""


class ModelConfigError(ValueError):
    """A config.json that cannot be read: one line naming the model, the field and what was expected."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bytes per parameter of a checkpoint: expert matrices, other linear layers, and everything else."""

    name: str
    expert_bytes: float
    linear_bytes: float
    other_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One decoder layer: its cache and its parameters, counted by how tensor parallelism divides them.

    ``sharded_params`` are divided evenly (query, output, dense and shared-expert matrices), ``kv_params`` by
    KV heads (at least one head per rank), ``replicated_params`` not at all. ``expert_params`` is one expert
    of ``num_experts``, of which a token uses ``active_experts``. ``before`` and ``beside`` are further caches of the
    same layer, those that vLLM lists before and behind ``spec``: attention beside a state, the keys of a sparse
    attention's indexer.
    """

    spec: LayerSpec
    before: tuple[LayerSpec, ...] = ()
    beside: tuple[LayerSpec, ...] = ()
    weight_format: WeightFormat | None = None
    """The layer's own format, where a checkpoint is quantised; None: the model's."""
    query_heads: int
    attention_width: int
    """Multiply-adds per query head and query-key pair in decode: head size for scores and for values."""
    prefill_attention_width: int
    """The same in prefill; MLA computes full heads there and works on the latent in decode."""
    sharded_params: int
    kv_params: int
    replicated_params: int
    norm_params: int = 0
    num_experts: int = 0
    active_experts: int = 0
    expert_params: int = 0

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """All caches of the layer, as vLLM lists them."""
        return (*self.before, self.spec, *self.beside)

    @property
    def dense_params(self) -> int:
        """Parameters that every token uses."""
        return self.sharded_params + self.kv_params + self.replicated_params + self.norm_params

    @property
    def total_params(self) -> int:
        """All parameters of the layer."""
        return self.dense_params + self.num_experts * self.expert_params

    @property
    def active_params(self) -> int:
        """Parameters that one token uses."""
        return self.dense_params + self.active_experts * self.expert_params

    def dense_params_on_rank(self, tensor_parallel_size: int) -> float:
        """Parameters of matrices on one rank, experts and norms left out."""
        heads = max(1, *(spec.num_kv_heads for spec in self.specs))
        kv_share = max(1, heads // tensor_parallel_size) / heads
        return self.sharded_params / tensor_parallel_size + self.kv_params * kv_share + self.replicated_params


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only language model, as far as memory and arithmetic depend on it.

    ``notes`` are one-line remarks on what was assumed or left out, for the user.
    """

    name: str
    dtype: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position_tokens: int
    default_max_model_len: int | None = None
    """The longest request where nothing else is said; None: ``max_position_tokens``."""
    layers: tuple[LayerShape, ...]
    weight_format: WeightFormat
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    """The dtype of the KV cache that the checkpoint was made for, where it states one."""
    sm100_kv_cache_dtype: str | None = None
    """What "auto" becomes on GPUs of compute capability 10.x, where the family has a default of its own there."""
    mtp_layer: LayerShape | None = None
    """The decoder layer of a module for multi-token prediction; None: like the model's last one of attention."""
    num_mtp_layers: int = 1
    """Modules for multi-token prediction in the checkpoint; one where it does not say."""
    other_params: int = 0
    """Parameters outside layers, embedding and head: embeddings that layers look up on their own."""
    mlp_activation_values: int
    """Values per token that the widest MLP of the model keeps at once, before tensor parallelism."""
    kept_hidden_states: int = 0
    """Hidden states of earlier layers that a step keeps until its end (Kimi-K3: of every ``attn_res_block_size``)."""
    vision: VisionTower | None = None
    takes_images: bool = False
    """Whether there is a vision tower, be its sizes known or not."""
    keeps_images_whole: bool = False
    """Whether a step must compute all tokens of an image or none."""
    notes: tuple[str, ...] = ()

    @property
    def kernel_block_tokens(self) -> int:
        """Blocks of vLLM's attention kernels on GPUs are multiples of this, where a model leaves the choice.

        Of latent attention (MLA) they have 64 tokens; where an index picks blocks (MiniMax-M3), those it picks.
        """
        specs = [(layer.spec, *layer.before) for layer in self.layers]
        if any(not spec.is_latent and any(key.is_latent for key in keys) for spec, *keys in specs):
            return 128
        return 64 if any(spec.is_latent and not spec.block_tokens for spec, *_ in specs) else 16

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(layer.num_experts for layer in self.layers)

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def has_attention(self) -> bool:
        """Whether any layer keeps keys and values, or latents of them."""
        return any(spec.kind not in ("mamba", "mlp") for layer in self.layers for spec in layer.specs)

    @property
    def has_states(self) -> bool:
        """Whether any layer keeps a state per sequence."""
        return any(spec.kind == "mamba" for layer in self.layers for spec in layer.specs)

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding, and as many of the output head if it is not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def head_params(self) -> int:
        """Parameters of an output head of its own; 0 if tied to the embedding."""
        return 0 if self.tied_embeddings else self.embedding_params

    @property
    def total_params(self) -> int:
        """All parameters of the language model (no vision tower, no speculative heads)."""
        layers = sum(layer.total_params for layer in self.layers)
        return layers + self.embedding_params + self.head_params + self.other_params + self.hidden_size

    @property
    def active_params(self) -> int:
        """Parameters that take part in computing one token: experts not chosen are left out."""
        layers = sum(layer.active_params for layer in self.layers)
        return layers + self.embedding_params + self.head_params + self.hidden_size

    def token_bytes(self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """KV cache bytes of one token in all layers of one rank, windows taken as full."""
        specs = (spec.on_rank(tensor_parallel_size) for layer in self.layers for spec in layer.specs if spec.has_cache)
        return sum(spec.token_bytes(kv_cache_dtype, self.dtype) for spec in specs)

    def weight_bytes(
        self,
        tensor_parallel_size: int = 1,
        rank: int = 0,
        num_ranks: int = 1,
        *,
        data_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
    ) -> int:
        """Bytes of the weights on one tensor-parallel rank of pipeline rank ``rank`` of ``num_ranks``.

        Experts are shared by the GPUs of all data-parallel ranks: a slice of each, or whole ones with
        ``enable_expert_parallel``.
        """
        fmt = self.weight_format
        tp = tensor_parallel_size
        sharing_gpus = tp * data_parallel_size
        first, end = pipeline_layers(self.num_layers, num_ranks)[rank]
        total = 0.0
        for layer in self.layers[first:end]:
            own = layer.weight_format or fmt
            total += layer.dense_params_on_rank(tp) * own.linear_bytes + layer.norm_params * fmt.other_bytes
            slices = 1 if enable_expert_parallel else sharing_gpus
            expert_bytes = layer.expert_params * own.expert_bytes * self._padding(layer, slices) / slices
            total += -(-layer.num_experts * slices // sharing_gpus) * expert_bytes
        has_embedding = rank == 0 or (self.tied_embeddings and rank == num_ranks - 1)
        total += has_embedding * self.embedding_params / tp * fmt.other_bytes
        total += (rank == 0) * self.other_params / tp * fmt.other_bytes
        total += (rank == num_ranks - 1) * (self.head_params / tp + self.hidden_size) * fmt.other_bytes
        return round(total)

    def _padding(self, layer: LayerShape, slices: int) -> float:
        """How much larger vLLM keeps an expert than the checkpoint does: 4-bit kernels read whole tiles."""
        if self.weight_format.name != "mxfp4":
            return 1.0
        width = layer.expert_params // (3 * self.hidden_size + 2) // slices  # 2: biases, where it has some
        rounded = -(-width // EXPERT_WIDTH_TILE) * EXPERT_WIDTH_TILE
        return -(-self.hidden_size // EXPERT_HIDDEN_TILE) * EXPERT_HIDDEN_TILE / self.hidden_size * rounded / width

    @property
    def dtype_bytes(self) -> int:
        """Bytes per value of activations."""
        return DTYPE_BYTES[self.dtype]


def pipeline_layers(num_layers: int, num_ranks: int) -> list[tuple[int, int]]:
    """First and end layer of every pipeline rank.

    A remainder goes, one layer each, to the ranks before the last one, from the back: vLLM spares the last
    rank, which has the output head. ValueError: more ranks than layers.
    """
    if not 1 <= num_ranks <= num_layers:
        raise ValueError(f"pipeline parallel size must be 1 to {num_layers} (layers), not {num_ranks}")
    sizes = [num_layers // num_ranks] * num_ranks
    for back in range(num_layers % num_ranks):
        sizes[-2 - back] += 1
    ends = [sum(sizes[: rank + 1]) for rank in range(num_ranks)]
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
