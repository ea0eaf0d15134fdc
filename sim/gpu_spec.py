"""What a step-time model and the sizing need to know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU. Rates are peaks of the data sheet, dense (without sparsity); see ``source``.

    ``memory_is_measured`` tells whether ``memory_bytes`` is what CUDA reports (what vLLM multiplies) or the
    data sheet's figure. Link rates are of one direction; ``nvlink_bytes_per_s`` and ``fp8_flops_per_s`` are 0
    where the hardware has none.
    """

    name: str
    memory_bytes: int
    memory_is_measured: bool
    memory_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str
    compute_capability: float = 0.0
    """NVIDIA's; 0 where it is not known."""
    notes: str = ""
    memory_efficiency: float = 0.80
    """Share of the memory's peak that matrix products and attention reach where they are bound by it."""
    matrix_efficiency: float = 0.80
    """Share of the arithmetic peak that large matrix products reach."""
    interconnect: str = ""
    """Kind of link between such GPUs in a server (experiments/catalogue/interconnects.yaml), unless the user says."""
    decode_attention_beside_prompts: float = 1.0
    """How much longer attention takes for sequences that decode, where the same step computes prompt tokens too.

    Above 1 with FlashAttention 2 (:class:`~kvtwin.sim.decode_attention.DecodeAttention`).
    """

    multiprocessors: int = 0
    """Streaming multiprocessors; 0 where it does not matter."""
