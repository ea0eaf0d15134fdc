"""A step-time model from data sheets: every part of a step takes the longer of its memory and its arithmetic.

The roofline model (Williams et al., CACM 2009) applied part by part: matrices, output head, attention, sampling, and
what is done value by value. The shares of the peaks come from public measurements of kernels, never from whole servers:
a calibration on the real machine beats them. Pipeline stages are taken one after the other, without overlap between
steps.
"""

from __future__ import annotations

from array import array
from collections import defaultdict

from kvtwin.engine.compiled.loop.step_time import NO_WINDOW, ROOFLINE
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.sim.decode_attention import DecodeAttention
from kvtwin.sim.gpu_spec import GpuSpec
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape

ATTENTION_EFFICIENCY = 0.50
"""Share of the dense peak in prefill attention: 0.4 for a prompt of 2,048 tokens, 0.56 for one of 8,192 on an A100
(aiconfigurator-core 0.12.0)."""

ATTENTION_READ_EFFICIENCY = 0.90
"""Share of the memory's efficiency with which decode attention reads. 32 to 128 sequences of 1,024 tokens reach 0.67 to
0.9 of the peak on six GPUs (aiconfigurator-core 0.12.0), longer ones more."""

LAYER_OVERHEAD_NS = 20_000
"""Shortest time of a layer's small kernels: attention takes 9 to 12 microseconds at the least, norms and activation two
to three each, on every GPU that aiconfigurator-core 0.12.0 has tables of."""

STEP_OVERHEAD_NS = 200_000
"""Preparing inputs, sampling, starting a graph: what asynchronous scheduling does not hide. Assumption."""

ELEMENTWISE_HIDDEN_VALUES = 8
"""Values of the hidden size that norms, rotations and sums of a layer read and write per token."""

SAMPLING_BYTES = 46
"""Bytes that vLLM's sampler reads and writes per entry of the vocabulary and sampled token: to FP32 (2 + 4), by the
temperature (4 + 4), softmax (4 + 4 + 4), noise (4), by the noise (8 + 4), largest (4). Top-k and top-p take more."""

ROUNDING = 3
"""Exponent with which memory and arithmetic of a matrix product add up: between the sides of the roof it is no corner.
Products of 256 tokens, where both bind, take 1.2 to 1.3 times the longer of both on six GPUs (aiconfigurator-core
0.12.0)."""


class RooflineStepTime:
    """Predicts a step from the model's sizes and the GPU's data sheet.

    Weights of the matrices are read once per step; of the experts only those that ``tokens`` random choices
    touch; the output head only for sampled tokens. Attention reads ``context_tokens`` of KV, a window at
    most its length per sequence. What GPUs send each other is not part of it.
    """

    name = "roofline"

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        *,
        kv_cache_dtype: str = "auto",
        tensor_parallel_size: int = 1,
        data_parallel_size: int = 1,
    ) -> None:
        """ValueError: sizes that tensor parallelism does not divide, or an unknown cache dtype.

        Ranks of data parallelism share the experts: each has its part of them, and computes it for the tokens of all.
        Those of the others are taken to be as many as its own, to which vLLM pads them.
        """
        tp, dp = tensor_parallel_size, data_parallel_size
        fmt = shape.weight_format
        use_fp8 = fmt.name.startswith("fp8") and gpu.fp8_flops_per_s > 0
        peak = gpu.fp8_flops_per_s if use_fp8 else gpu.bf16_flops_per_s
        byte_ns = 1e9 / (gpu.memory_bytes_per_s * gpu.memory_efficiency)
        gemm_ns = 1e9 / (peak * gpu.matrix_efficiency)
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
                miss = (1 - layer.active_experts / layer.num_experts) ** dp
                experts[miss] += layer.num_experts * layer.expert_params / (tp * dp) * own.expert_bytes
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
        self._sampling_ns = sampling_ns_per_token(shape, gpu)
        read_ns = byte_ns / ATTENTION_READ_EFFICIENCY
        self._windows = [
            (window, costs[0] * read_ns, costs[1] * attention_ns, costs[2] * attention_ns)
            for window, costs in windows.items()
            if costs[0]
        ]
        self._written_ns = written_bytes * byte_ns
        self._state_ns = 2 * state_bytes * byte_ns  # read and written
        values = ELEMENTWISE_HIDDEN_VALUES * shape.hidden_size + 1.5 * shape.mlp_activation_values / tp
        self._elementwise_ns = num_layers * values * shape.dtype_bytes * byte_ns
        self._decode_attention = decode_attention(shape, gpu, tp)
        self._description: dict[str, float | int | str] = {
            "model": self.name,
            "gpu": gpu.name,
            "tensor_parallel_size": tp,
            **({"data_parallel_size": dp} if dp > 1 else {}),
            "weights": fmt.name,
            "matrix_flops_per_s": peak,
            "memory_bytes_per_s": gpu.memory_bytes_per_s,
            "memory_efficiency": gpu.memory_efficiency,
            "matrix_efficiency": gpu.matrix_efficiency,
            "attention_efficiency_assumed": ATTENTION_EFFICIENCY,
            "fixed_step_ns": self._fixed_ns,
        }

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        sequences, decodes, prefill_tokens, context_tokens, pairs, sampled, _ = shape
        if sequences == 0:
            return 0
        tokens = decodes + prefill_tokens
        total = self._tokens_ns(tokens) + self._sampled_ns(sampled)
        read = self._written_ns * tokens + self._state_ns * sequences
        arithmetic = 0.0
        for window, context_ns, decode_pair_ns, prefill_pair_ns in self._windows:
            if window is None:
                read += context_ns * context_tokens
                if self._decode_attention:
                    read += context_ns * self._decode_attention.extra_tokens(shape)
                arithmetic += decode_pair_ns * context_tokens + prefill_pair_ns * pairs
            else:  # a chunk of q tokens sees the window before it and itself
                seen = min(context_tokens, sequences * window + prefill_tokens)
                read += context_ns * seen
                arithmetic += decode_pair_ns * seen + prefill_pair_ns * min(pairs, prefill_tokens * window)
        total += read if read > arithmetic else arithmetic
        return round(total)

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts:
        """Constants, four numbers per window, and what tokens and sampled tokens take by their numbers."""
        numbers = [self._written_ns, self._state_ns, float(most_tokens + 1)]
        numbers += map(float, self._decode_attention or (0, 0, 0))
        for window, *costs in self._windows:
            numbers += [NO_WINDOW if window is None else window, *costs]
        numbers += [self._tokens_ns(tokens) for tokens in range(most_tokens + 1)]
        numbers += [self._sampled_ns(sampled) for sampled in range(most_sequences + 1)]
        return StepCosts(ROOFLINE, array("d", numbers), len(self._windows))

    def _tokens_ns(self, tokens: int) -> float:
        """What depends on the number of tokens alone: matrices, what is done value by value, and what is fixed."""
        read = self._dense_ns
        for miss, num_ns in self._experts:
            read += num_ns * (1.0 - miss**tokens)
        return self._fixed_ns + _both(read, self._token_gemm_ns * tokens) + self._elementwise_ns * tokens

    def _sampled_ns(self, sampled: int) -> float:
        """The output head, and drawing tokens."""
        if not sampled:
            return 0.0
        return _both(self._head_ns, self._sampled_gemm_ns * sampled) + self._sampling_ns * sampled

    def describe(self) -> dict[str, float | int | str]:
        """The data-sheet rates and the assumptions behind a prediction."""
        return dict(self._description)


def decode_attention(shape: ModelShape, gpu: GpuSpec, tensor_parallel_size: int) -> DecodeAttention | None:
    """What makes decode attention slower than its context; None where nothing was measured that would."""
    return DecodeAttention.of(shape, gpu, tensor_parallel_size, gpu.memory_efficiency * ATTENTION_READ_EFFICIENCY)


def sampling_ns_per_token(shape: ModelShape, gpu: GpuSpec) -> float:
    """Time to draw one token from the vocabulary, once its logits are there."""
    return SAMPLING_BYTES * shape.vocab_size * 1e9 / (gpu.memory_bytes_per_s * gpu.memory_efficiency)


def _both(read_ns: float, arithmetic_ns: float) -> float:
    """Time of what reads and computes at once: little more than the longer of both, if one is much longer."""
    return float((read_ns**ROUNDING + arithmetic_ns**ROUNDING) ** (1 / ROUNDING))
