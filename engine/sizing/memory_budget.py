"""The GPU's memory, item by item: what is left for the KV cache of one rank (specification, sections 12.2 and 13.1).

vLLM measures these items at start-up; without a GPU only the first is exact. An estimate carries the interval
in which the true value is expected, and every item can be given instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvtwin.engine.sizing.drafter import Drafter
from kvtwin.engine.sizing.model_shape import ModelShape

GIB = 1 << 30
MIB = 1 << 20

SAMPLER_LOGITS_COPIES = (2.5, 5.0, 10.0)
"""Copies of the float32 logits alive in the sampler's profiling run: fewest, assumed, most.

2.5: logits in the model's dtype and in float32, and probabilities. 10: sorting them in PyTorch; the 1.26 GiB of an 8B
model with 256 sequences and 128,256 tokens are 10.3 (log in vllm-project/vllm PR 10511). 5: masked logits and
log-probabilities too, as FlashInfer's sampler leaves them; an assumption.
"""

SORTING_SAMPLER_LOGITS_COPIES = (2.5, 9.6, 12.0)
"""The same before vLLM 0.16, which sorted: values and indices of 64 bits, their probabilities and sums, and masks."""

LAYER_HIDDEN_COPIES = 3
"""Hidden states alive in a layer's MLP: residual, normalised copy, result."""

LAYER_SHARE = (0.7, 1.0, 1.5)
"""Of what is counted for a layer, that which the compiler keeps: least, assumed, most."""

GRAPH_LAYER_BYTES = (32 << 10, 256 << 10, 768 << 10)
"""Bytes of one captured graph per layer, as vLLM estimates them before it captures: fewest, assumed, most.

Start-up logs: 0.63 GiB for 28 layers, 1.45 and 1.94 GiB for 64, all with 86 graphs.
"""

OTHER_BYTES = (16 * MIB, 160 * MIB, GIB)
"""Of a single GPU: kernels, workspaces and input buffers, loaded or made after vLLM's first look at the memory."""

OTHER_BYTES_TENSOR_PARALLEL = (200 * MIB, 1400 * MIB, 2560 * MIB)
"""The same where GPUs share layers or experts: all-reduces have buffers of their own. Logs show 0.2 to 1.8 GiB."""


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """What a version of vLLM counts: CUDA graphs before they are captured, penalty counts of the sampler."""

    counts_cuda_graphs: bool = True
    keeps_token_counts: bool = True
    sampler_logits_copies: tuple[float, float, float] = SAMPLER_LOGITS_COPIES


def rules_of(version: tuple[int, int]) -> BudgetRules:
    """The rules of a version (major, minor): what start-up logs of older ones are compared with."""
    return BudgetRules(
        counts_cuda_graphs=version >= (0, 21),
        keeps_token_counts=version >= (0, 29),
        sampler_logits_copies=SAMPLER_LOGITS_COPIES if version >= (0, 16) else SORTING_SAMPLER_LOGITS_COPIES,
    )


@dataclass(frozen=True, slots=True)
class BudgetItem:
    """Memory that is not available to the KV cache, in bytes.

    ``source`` is "given", "exact" or "estimate"; for an estimate the true value is expected between
    ``low_bytes`` and ``high_bytes``. ``reason`` says in one line where the number comes from.
    """

    name: str
    num_bytes: int
    source: str
    reason: str
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What one rank has and what it spends before the KV cache, in bytes."""

    total_bytes: int
    utilization: float
    items: tuple[BudgetItem, ...]

    @property
    def requested_bytes(self) -> int:
        """The share of the GPU that the server may use: total times utilisation, rounded up."""
        return math.ceil(self.total_bytes * self.utilization)

    @property
    def available_bytes(self) -> int:
        """Left for the KV cache; negative if the rest alone is too large."""
        return self._available([item.num_bytes for item in self.items])

    @property
    def available_interval(self) -> tuple[int, int]:
        """Least and most that may be left, if every estimate errs in the same direction."""
        low = self._available([item.high_bytes for item in self.items])
        return low, self._available([item.low_bytes for item in self.items])

    def _available(self, spent: list[int]) -> int:
        return self.requested_bytes - sum(spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBytes:
    """Measured values that replace estimates; None keeps the estimate."""

    weights: int | None = None
    activation_peak: int | None = None
    cuda_graphs: int | None = None
    other: int | None = None


def default_max_num_batched_tokens(total_memory_bytes: int, gpu_name: str) -> int:
    """vLLM's default for the API server, by GPU memory (specification, section 12.2)."""
    if total_memory_bytes >= 160 * GIB:
        return 16384
    return 8192 if _is_large(total_memory_bytes, gpu_name) else 2048


def default_max_num_seqs(total_memory_bytes: int, gpu_name: str, max_num_batched_tokens: int) -> int:
    """vLLM's default number of sequences, capped by the batched tokens (specification, section 12.2)."""
    return min(1024 if _is_large(total_memory_bytes, gpu_name) else 256, max_num_batched_tokens)


def _is_large(total_memory_bytes: int, gpu_name: str) -> bool:
    small = any(name in gpu_name.lower() for name in ("a100", "gb10"))
    return total_memory_bytes >= 160 * GIB or (total_memory_bytes >= 70 * GIB and not small)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What decides a server's profiling run beside its model, in vLLM's words."""

    max_num_batched_tokens: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks that share the experts; 1 where there are none."""
    enable_expert_parallel: bool = False
    num_drafts: int = 0
    enforce_eager: bool = False
    reads_images: bool = True
    """Whether images are profiled; not with --skip-mm-profiling or limits of 0."""
    gpu_name: str = ""

    def num_graphs(self) -> int:
        """CUDA graphs captured: one for each batch size up to a limit, and a whole one for each of decodes.

        Sizes are 1, 2, 4, multiples of 8 below 256 and of 16 from there; the limit is twice the largest batch of
        decodes, at most 512, or 1,024 on data-centre Blackwell (specification, section 13.1).
        """
        if self.enforce_eager:
            return 0
        width = 1 + self.num_drafts
        most = 1024 if any(name in self.gpu_name.lower() for name in ("b200", "b300")) else 512
        limit = min(self.max_num_seqs * width * 2, most, self.max_num_batched_tokens)
        sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
        mixed = {size for size in sizes if size <= limit} | (
            {self.max_num_seqs} if self.max_num_seqs <= limit else set()
        )
        decodes = {size for size in (*sizes, self.max_num_seqs) if size <= self.max_num_seqs and size * width <= limit}
        return len(mixed) + len(decodes)


def memory_budget(
    shape: ModelShape,
    server: Server,
    *,
    total_bytes: int,
    utilization: float,
    rank: int = 0,
    drafter: Drafter | None = None,
    given: GivenBytes | None = None,
    rules: BudgetRules | None = None,
) -> MemoryBudget:
    """The budget of pipeline rank ``rank``."""
    given, rules = given or GivenBytes(), rules or BudgetRules()
    pp = server.pipeline_parallel_size
    items = _weights(shape, drafter, given.weights, server, rank)
    if given.activation_peak is not None:
        items.append(_exact("activation peak", given.activation_peak, "given", "--activation-peak-bytes"))
    else:
        items.append(_activation_peak(shape, server, rules, rank))
    if not rules.counts_cuda_graphs:
        pass  # captured later, in memory that nobody has set aside
    elif server.enforce_eager:
        items.append(_exact("CUDA graphs", 0, "exact", "--enforce-eager"))
    elif given.cuda_graphs is not None:
        items.append(_exact("CUDA graphs", given.cuda_graphs, "given", "--cuda-graph-bytes"))
    else:
        layers, graphs = -(-shape.num_layers // pp), server.num_graphs()
        sizes = [graphs * layers * size for size in GRAPH_LAYER_BYTES]
        items.append(_estimate("CUDA graphs", sizes, f"{graphs} graphs of {layers} layers"))
    if given.other is not None:
        items.append(_exact("other (non-torch)", given.other, "given", "--other-bytes"))
    else:
        items.append(_other(shape, server, rules, is_last=rank == pp - 1))
    return MemoryBudget(total_bytes, utilization, tuple(items))


def _weights(
    shape: ModelShape, drafter: Drafter | None, given: int | None, server: Server, rank: int
) -> list[BudgetItem]:
    if given is not None:
        return [_exact("weights", given, "given", "--weight-bytes")]
    tp, pp, name = server.tensor_parallel_size, server.pipeline_parallel_size, shape.weight_format.name
    num_bytes = shape.weight_bytes(
        tp,
        rank,
        pp,
        data_parallel_size=server.data_parallel_size,
        enable_expert_parallel=server.enable_expert_parallel,
    )
    items = [_exact("weights", num_bytes, "exact", f"parameters counted from config.json, {name}")]
    if shape.vision and rank == 0:
        num_bytes = shape.vision.params * shape.dtype_bytes // tp
        items.append(_exact("vision tower", num_bytes, "exact", f"parameters counted, {shape.dtype}"))
    if drafter and rank == pp - 1:
        items.append(_exact("drafter's weights", drafter.weight_bytes(tp), "exact", "parameters counted"))
    return items


def _activation_peak(shape: ModelShape, server: Server, rules: BudgetRules, rank: int) -> BudgetItem:
    """The largest of three: the vision tower on the most images, a layer on a full batch, the sampler on all sequences.

    A layer keeps hidden states and the MLP's intermediate values, in the model's dtype; the sampler works on float32
    logits of the whole vocabulary, on every tensor-parallel rank of the last pipeline rank. Embeddings of the images
    stay on the first one until both have run.
    """
    tokens, num_seqs = server.max_num_batched_tokens, server.max_num_seqs
    hidden_copies = LAYER_HIDDEN_COPIES + shape.kept_hidden_states
    per_token = hidden_copies * shape.hidden_size + -(-shape.mlp_activation_values // server.tensor_parallel_size)
    layer = [share * tokens * per_token * shape.dtype_bytes for share in LAYER_SHARE]
    logits_bytes = num_seqs * shape.vocab_size * 4 * (rank == server.pipeline_parallel_size - 1)
    sampler = [copies * logits_bytes for copies in rules.sampler_logits_copies]
    reason = f"layer on {tokens} tokens, sampler on {num_seqs} sequences"
    tower, embeddings = [0, 0, 0], 0
    if shape.vision and server.reads_images and rank == 0:
        images = shape.vision.num_images(tokens, num_seqs)
        embeddings = images * shape.vision.image_tokens * shape.hidden_size * shape.dtype_bytes
        tower = [values * shape.dtype_bytes for values in shape.vision.peak_values(images)]
        reason = f"vision tower on {images} image{'s' * (images > 1)}, {reason}"
    sizes = [round(max(e, max(lay, s) + embeddings)) for e, lay, s in zip(tower, layer, sampler, strict=True)]
    return _estimate("activation peak", sizes, f"max({reason})")


def _other(shape: ModelShape, server: Server, rules: BudgetRules, is_last: bool) -> BudgetItem:
    """Memory that is neither; the sampler's part is exact: it counts each request's tokens for penalties."""
    counts = server.max_num_seqs * shape.vocab_size * 4 if rules.keeps_token_counts and is_last else 0
    is_alone = server.tensor_parallel_size * server.data_parallel_size == 1
    sizes = OTHER_BYTES if is_alone else OTHER_BYTES_TENSOR_PARALLEL
    reason = "kernels, workspaces, NCCL" + (f"; token counts of {server.max_num_seqs} sequences" if counts else "")
    return _estimate("other (non-torch)", [size + counts for size in sizes], reason)


def _exact(name: str, num_bytes: int, source: str, reason: str) -> BudgetItem:
    return BudgetItem(name, num_bytes, source, reason, num_bytes, num_bytes)


def _estimate(name: str, low_middle_high: list[int], reason: str) -> BudgetItem:
    low, middle, high = low_middle_high
    return BudgetItem(name, middle, "estimate", reason, low, high)
