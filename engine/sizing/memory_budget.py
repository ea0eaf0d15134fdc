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

SAMPLER_LOGITS_COPIES = (3, 5, 12)
"""Copies of the float32 logits alive in the sampler's profile run: fewest, assumed, most.

3: logits, probabilities and a workspace (fused sampling kernels). 12: sorting them in PyTorch; the 1.26 GiB
of an 8B model with 256 sequences and 128,256 tokens are 10.3 (log in vllm-project/vllm PR 10511). 5 is
an assumption between the two.
"""

GRAPHS_PER_MODEL = 86
"""51 piecewise and 35 full graphs: what vLLM captures by default for batches of up to 512 and 256 tokens."""

GRAPH_LAYER_BYTES = (64 << 10, 128 << 10, 512 << 10)
"""Bytes of one captured graph per layer: fewest, assumed, most; logs show 0.1 to 0.7 GiB on one GPU."""

NON_TORCH_BYTES = (256 * MIB, 512 * MIB, 2 * GIB)
"""CUDA context, cuBLAS and NCCL of a rank: logs show 0.16 to 1.8 GiB (vLLM PRs 10511 and 12126)."""


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


def memory_budget(
    shape: ModelShape,
    *,
    total_bytes: int,
    utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    rank: int = 0,
    drafter: Drafter | None = None,
    enforce_eager: bool = False,
    given: GivenBytes | None = None,
) -> MemoryBudget:
    """The budget of pipeline rank ``rank``. ModelConfigError: weights of unknown size that were not given."""
    given = given or GivenBytes()
    tp, pp = tensor_parallel_size, pipeline_parallel_size
    if given.weights is not None:
        weights = _exact("weights", given.weights, "given", "--weight-bytes")
    else:
        name = shape.weight_format.name if shape.weight_format else ""
        num_bytes = shape.weight_bytes(tp, rank, pp)
        weights = _exact("weights", num_bytes, "exact", f"parameters counted from config.json, {name}")
    items = [weights]
    if drafter and rank == pp - 1 and given.weights is None:
        items.append(_exact("drafter's weights", drafter.weight_bytes(tp), "exact", "parameters counted"))
    if given.activation_peak is not None:
        activation = _exact("activation peak", given.activation_peak, "given", "--activation-peak-bytes")
    else:
        activation = _activation_peak(shape, max_num_batched_tokens, max_num_seqs, tp)
    if enforce_eager:
        graphs = _exact("CUDA graphs", 0, "exact", "--enforce-eager")
    elif given.cuda_graphs is not None:
        graphs = _exact("CUDA graphs", given.cuda_graphs, "given", "--cuda-graph-bytes")
    else:
        layers = -(-shape.num_layers // pp)
        sizes = [GRAPHS_PER_MODEL * layers * size for size in GRAPH_LAYER_BYTES]
        graphs = _estimate("CUDA graphs", sizes, f"{GRAPHS_PER_MODEL} graphs of {layers} layers")
    if given.other is not None:
        other = _exact("other (non-torch)", given.other, "given", "--other-bytes")
    else:
        other = _estimate("other (non-torch)", list(NON_TORCH_BYTES), "CUDA context, cuBLAS, NCCL")
    return MemoryBudget(total_bytes, utilization, (*items, activation, graphs, other))


def _activation_peak(shape: ModelShape, batched_tokens: int, num_seqs: int, tp: int) -> BudgetItem:
    """The larger of the widest layer on a full batch and the sampler on all sequences.

    A layer keeps the residual, its normalised copy and the MLP's intermediate values, in the model's dtype;
    the sampler works on float32 logits of the whole vocabulary on every rank.
    """
    layer_values = 2 * shape.hidden_size + -(-shape.mlp_activation_values // tp)
    layer_bytes = batched_tokens * layer_values * shape.dtype_bytes
    logits_bytes = num_seqs * shape.vocab_size * 4
    sizes = [max(layer_bytes, copies * logits_bytes) for copies in SAMPLER_LOGITS_COPIES]
    reason = f"max(layer on {batched_tokens} tokens, sampler on {num_seqs} sequences)"
    return _estimate("activation peak", sizes, reason)


def _exact(name: str, num_bytes: int, source: str, reason: str) -> BudgetItem:
    return BudgetItem(name, num_bytes, source, reason, num_bytes, num_bytes)


def _estimate(name: str, low_middle_high: list[int], reason: str) -> BudgetItem:
    low, middle, high = low_middle_high
    return BudgetItem(name, middle, "estimate", reason, low, high)
