"""How long attention takes for sequences that decode, as measured: longer than the context alone would tell."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvtwin.engine.compiled.loop.step_time import LONGEST_BESIDE_PROMPTS, LONGEST_DIVIDED
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.sim.gpu_spec import GpuSpec
from kvtwin.sim.step_shape import StepShape

UNDIVIDED_BYTES_PER_S = 34e9
"""How fast the keys and values of one head of one sequence are read by those who read them alone."""

PIECES_PER_MULTIPROCESSOR = 1.6
"""Fewest pieces of work, a key head of a sequence each, from which on FlashAttention 2 divides none of them."""

GRAPH_STEP = 8
"""vLLM pads steps that decode to multiples of it, the sizes of its CUDA graphs."""


class DecodeAttention(NamedTuple):
    """FlashAttention 2, which vLLM uses on GPUs that are neither Hopper nor a data centre's Blackwell, with query heads
    in groups.

    Two things make it slower than an equal context of equally long sequences alone in a step. Where a prompt is in the
    same step, context is read once per query head instead of once per group. And the longest sequence is still read
    when others are done, by few who cannot read as fast as all together. It counts as if several were as long.

    Both from LLMServingSim's profiles of an RTX PRO 6000 (profiler/perf/RTXPRO6000, Llama-3.1-8B and Qwen3-32B; 27,000
    batches of 2 to 256 sequences of unequal context). Where all decode, and contexts are not divided, each token that
    the longest has beyond the mean takes 15 ns a layer, with 8 key heads and with 4: 34 GB/s. Where contexts are
    divided, 0.03 of it for each sequence. Beside prompts, as 3 to 5 sequences, whatever their number.
    """

    beside_prompts: float
    """How much longer it takes where the same step computes prompt tokens."""
    longest_undivided: float
    """As how many sequences the longest one counts where contexts are not divided."""
    undivided_from: int
    """Sequences from which on they are not."""

    @classmethod
    def of(
        cls, shape: ModelShape, gpu: GpuSpec, tensor_parallel_size: int, memory_share: float
    ) -> DecodeAttention | None:
        """Of a model on a GPU where it reads with ``memory_share`` of the memory's peak; None: another kernel runs."""
        heads = [
            layer.spec.on_rank(tensor_parallel_size).num_kv_heads
            for layer in shape.layers
            if 0 < layer.spec.num_kv_heads < layer.query_heads
        ]
        if not heads or gpu.decode_attention_beside_prompts <= 1:
            return None
        fastest = gpu.memory_bytes_per_s * memory_share
        least = math.ceil(PIECES_PER_MULTIPROCESSOR * gpu.multiprocessors / heads[0])
        return cls(
            gpu.decode_attention_beside_prompts,
            max(fastest / (UNDIVIDED_BYTES_PER_S * heads[0]), 1.0),
            -(-least // GRAPH_STEP) * GRAPH_STEP - GRAPH_STEP + 1,
        )

    def extra_tokens(self, shape: StepShape) -> float:
        """Tokens of context that would take as long, if they were read besides those that the step reads."""
        decodes = shape.decode_sequences
        if not decodes:
            return 0.0
        context = shape.decode_context_tokens
        longer = max(shape.longest_decode_context - context / decodes, 0.0)
        if shape.prefill_tokens:
            uneven = min(float(decodes), LONGEST_BESIDE_PROMPTS) * longer
            return (self.beside_prompts - 1) * context + self.beside_prompts * uneven
        if decodes >= self.undivided_from:
            return min(float(decodes), self.longest_undivided) * longer
        return LONGEST_DIVIDED * decodes * longer
