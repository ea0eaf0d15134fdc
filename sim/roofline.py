"""A step-time model from data sheets: every part of a step takes the longer of its memory and its arithmetic.

The roofline model (Williams et al., CACM 2009) applied part by part: matrices, output head, attention. The
efficiencies below are assumptions, said so in ``describe()``; a calibration on the real machine beats them.
Pipeline stages are taken one after the other, without overlap between steps.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

from kvtwin.engine.compiled.loop.step_time import NO_WINDOW, ROOFLINE
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.sim.gpu_spec import GpuSpec
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape

MEMORY_EFFICIENCY = 0.85
"""Share of the peak bandwidth. Copies reach 0.9 on an H200; FlashMLA's README states 3000 of 3350 GB/s."""

GEMM_EFFICIENCY = 0.70
"""Share of the dense peak in matrix products. Large ones reach 0.8 on Hopper; the shapes here are smaller."""

ATTENTION_EFFICIENCY = 0.50
"""Share of the dense peak in prefill attention. The FlashAttention-3 paper states 0.75 without paging."""

LINK_EFFICIENCY = 0.75
"""Share of the link's peak in an all-reduce. Assumption."""

ALL_REDUCE_LATENCY_NS = 8_000
"""Time of an all-reduce of nothing. Assumption; two per layer."""

LAYER_OVERHEAD_NS = 10_000
"""Gaps between the about ten kernels of a layer inside a CUDA graph, a microsecond each. Assumption."""

STEP_OVERHEAD_NS = 200_000
"""Preparing inputs, sampling, starting a graph: what asynchronous scheduling does not hide. Assumption."""


class RooflineStepTime:
    """Predicts a step from the model's sizes and the GPU's data sheet.

    Weights of the matrices are read once per step; of the experts only those that ``tokens`` random choices
    touch; the output head only for sampled tokens. Attention reads ``context_tokens`` of KV, a window at
    most its length per sequence. With tensor parallelism two all-reduces follow per layer.
    """

    name = "roofline"

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        *,
        kv_cache_dtype: str = "auto",
        tensor_parallel_size: int = 1,
    ) -> None:
        """ValueError: sizes that tensor parallelism does not divide, or an unknown cache dtype."""
        tp = tensor_parallel_size
        fmt = shape.weight_format
        use_fp8 = fmt.name.startswith("fp8") and gpu.fp8_flops_per_s > 0
        peak = gpu.fp8_flops_per_s if use_fp8 else gpu.bf16_flops_per_s
        byte_ns = 1e9 / (gpu.memory_bytes_per_s * MEMORY_EFFICIENCY)
        gemm_ns = 1e9 / (peak * GEMM_EFFICIENCY)
        attention_ns = 1e9 / (gpu.bf16_flops_per_s * ATTENTION_EFFICIENCY)

        dense_bytes = dense_params = expert_params = 0.0
        experts: dict[float, float] = defaultdict(float)  # chance that a token misses an expert -> bytes of all
        windows: dict[int | None, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        written_bytes = state_bytes = 0
        for layer in shape.layers:
            params = layer.dense_params_on_rank(tp)
            own = layer.weight_format or fmt
            dense_params += params
            dense_bytes += params * own.linear_bytes + layer.norm_params * fmt.other_bytes
            if layer.num_experts:
                expert_params += layer.active_experts * layer.expert_params / tp
                miss = 1 - layer.active_experts / layer.num_experts
                experts[miss] += layer.num_experts * layer.expert_params / tp * own.expert_bytes
            for spec in (spec.on_rank(tp) for spec in layer.specs):
                token_bytes = spec.token_bytes(kv_cache_dtype, shape.dtype)
                written_bytes += token_bytes * spec.has_cache
                state_bytes += spec.sequence_state_bytes(shape.dtype)
                windows[spec.window_tokens][0] += token_bytes
            costs = windows[layer.spec.window_tokens]
            heads = layer.query_heads / tp
            costs[1] += 2 * heads * layer.attention_width
            costs[2] += 2 * heads * layer.prefill_attention_width

        head_params = shape.embedding_params / tp
        # An MLP that is a layer of its own (Nemotron-H) counts with the layer before it.
        num_layers = sum(layer.spec.kind != "mlp" for layer in shape.layers)
        self._fixed_ns = STEP_OVERHEAD_NS + num_layers * LAYER_OVERHEAD_NS
        self._dense_ns = dense_bytes * byte_ns
        self._experts = [(miss, num_bytes * byte_ns) for miss, num_bytes in experts.items()]
        self._token_gemm_ns = 2 * (dense_params + expert_params) * gemm_ns
        self._head_ns = head_params * fmt.other_bytes * byte_ns
        self._sampled_gemm_ns = 2 * head_params * gemm_ns
        self._windows = [
            (window, costs[0] * byte_ns, costs[1] * attention_ns, costs[2] * attention_ns)
            for window, costs in windows.items()
            if costs[0]
        ]
        self._written_ns = written_bytes * byte_ns
        self._state_ns = 2 * state_bytes * byte_ns  # read and written
        self._token_link_ns = 0.0
        if tp > 1:
            link_bytes_per_s = gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s
            token_bytes_sent = 2 * (tp - 1) / tp * shape.hidden_size * shape.dtype_bytes  # ring all-reduce
            self._fixed_ns += 2 * num_layers * ALL_REDUCE_LATENCY_NS
            self._token_link_ns = 2 * num_layers * token_bytes_sent * 1e9 / (link_bytes_per_s * LINK_EFFICIENCY)
        self._description: dict[str, float | int | str] = {
            "model": self.name,
            "gpu": gpu.name,
            "tensor_parallel_size": tp,
            "weights": fmt.name,
            "matrix_flops_per_s": peak,
            "memory_bytes_per_s": gpu.memory_bytes_per_s,
            "memory_efficiency_assumed": MEMORY_EFFICIENCY,
            "gemm_efficiency_assumed": GEMM_EFFICIENCY,
            "attention_efficiency_assumed": ATTENTION_EFFICIENCY,
            "link_efficiency_assumed": LINK_EFFICIENCY,
            "fixed_step_ns": self._fixed_ns,
        }

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        sequences, decodes, prefill_tokens, context_tokens, pairs, sampled = shape
        if sequences == 0:
            return 0
        tokens = decodes + prefill_tokens
        read = self._read_ns(tokens)
        arithmetic = self._token_gemm_ns * tokens
        total = self._fixed_ns + (read if read > arithmetic else arithmetic)
        if sampled:
            arithmetic = self._sampled_gemm_ns * sampled
            total += self._head_ns if self._head_ns > arithmetic else arithmetic
        read = self._written_ns * tokens + self._state_ns * sequences
        arithmetic = 0.0
        for window, context_ns, decode_pair_ns, prefill_pair_ns in self._windows:
            if window is None:
                read += context_ns * context_tokens
                arithmetic += decode_pair_ns * context_tokens + prefill_pair_ns * pairs
            else:  # a chunk of q tokens sees the window before it and itself
                seen = min(context_tokens, sequences * window + prefill_tokens)
                read += context_ns * seen
                arithmetic += decode_pair_ns * seen + prefill_pair_ns * min(pairs, prefill_tokens * window)
        total += read if read > arithmetic else arithmetic
        return round(total + self._token_link_ns * tokens)

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts:
        """Constants, four numbers per window, and what is read of the matrices by the number of tokens."""
        numbers = [self._fixed_ns, self._token_gemm_ns, self._head_ns, self._sampled_gemm_ns]
        numbers += [self._written_ns, self._state_ns, self._token_link_ns, 0.0]
        for window, *costs in self._windows:
            numbers += [NO_WINDOW if window is None else window, *costs]
        numbers += [self._read_ns(tokens) for tokens in range(most_tokens + 1)]
        return StepCosts(ROOFLINE, array("d", numbers), len(self._windows))

    def _read_ns(self, tokens: int) -> float:
        """Time to read the matrices, but for the output head."""
        read = self._dense_ns
        for miss, num_ns in self._experts:
            read += num_ns * (1.0 - miss**tokens)
        return read

    def describe(self) -> dict[str, float | int | str]:
        """The data-sheet rates and the assumptions behind a prediction."""
        return dict(self._description)
