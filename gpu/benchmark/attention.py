"""Decode and prefill attention beside other kernels. ``python -m kvtwin.gpu.benchmark.attention --help``."""

from __future__ import annotations

from functools import partial

import torch

from kvtwin.gpu.attention import Attention
from kvtwin.gpu.benchmark.options import Options, parse_options
from kvtwin.gpu.benchmark.peers import Call, CannotCompareError, peers_of
from kvtwin.gpu.benchmark.problem import LLAMA_8B, Problem, Shape, make_problem, ragged_lengths
from kvtwin.gpu.benchmark.timing import median_us
from kvtwin.gpu.torch_attention import TorchAttention

MOST_ERROR = 2e-2
"""Between two kernels in 16 bits, relative to the largest value; more is no rounding."""

K = 1024
CASES: dict[str, tuple[list[int], list[int]]] = {
    "decode 64 x 8k": ([1] * 64, [8 * K] * 64),
    "decode 16 x 4k": ([1] * 16, [4 * K] * 16),
    "decode 1 x 8k": ([1], [8 * K]),
    "decode 1 x 128k": ([1], [128 * K]),
    "decode 64 ragged": ([1] * 64, ragged_lengths(64, 128, 16 * K, 64 * 8 * K)),
    "prefill 8k": ([8 * K], [8 * K]),
    "prefill 2k behind 30k": ([2 * K], [32 * K]),
}
"""By name: queries and context of every sequence."""

DRY_SHAPE = Shape(4, 2, 32)
DRY_CASES: dict[str, tuple[list[int], list[int]]] = {
    "decode 3 x 64": ([1] * 3, [64] * 3),
    "decode 5 ragged": ([1] * 5, ragged_lengths(5, 3, 90, 200)),
    "prefill 48": ([48], [48]),
    "prefill 8 behind 40": ([8], [48]),
}


def main() -> None:
    """Measure every case; what fails in a case is told, and the next one begins."""
    options = parse_options(__doc__)
    for name, (query_tokens, context_tokens) in (DRY_CASES if options.is_dry else CASES).items():
        problem = make_problem(
            name,
            query_tokens,
            context_tokens,
            shape=DRY_SHAPE if options.is_dry else LLAMA_8B,
            dtype=torch.float32 if options.is_dry else torch.bfloat16,
            device=options.device,
        )
        _measure(options, problem)
        del problem
        if not options.is_dry:
            torch.cuda.empty_cache()


def _measure(options: Options, problem: Problem) -> None:
    own = _own_calls(options, problem)
    expected = own["kvtwin"][0]()
    for name, calls in own.items():
        _add(options, problem, name, calls, expected)
    for name, peer in peers_of(options.peers).items():
        try:
            _add(options, problem, name, peer(problem), expected)
        except CannotCompareError as reason:
            options.results.add("attention", f"{problem.name} | {name}", left_out=str(reason))
        except Exception as error:  # whatever another kernel does must not end the measurement of ours
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:100]
            options.results.add("attention", f"{problem.name} | {name}", left_out=reason)


def _own_calls(options: Options, problem: Problem) -> dict[str, list[Call]]:
    """The project's kernels; decode also with the other cut that fits as often on a multiprocessor."""
    if options.is_dry:
        return {"kvtwin": _attend_calls(TorchAttention(), problem)}
    from kvtwin.gpu.triton_attention import TritonAttention, arch_of

    calls = {"kvtwin": _attend_calls(TritonAttention(arch_of(options.device)), problem)}
    if problem.is_decode:
        calls["kvtwin, tiles of 32"] = _small_tile_calls(problem, arch_of(options.device))
    return calls


def _attend_calls(attention: Attention, problem: Problem) -> list[Call]:
    return [
        partial(attention.attend, query, layer, problem.batch)
        for query, layer in zip(problem.queries, problem.layers, strict=True)
    ]


def _small_tile_calls(problem: Problem, arch: int) -> list[Call]:
    """Four stages of 32 tokens instead of three of 64: which is faster is an open question."""
    from kvtwin.gpu.kernels.decode import decode
    from kvtwin.gpu.kernels.launch_table import launch_constants

    shape, batch = problem.shape, problem.batch
    constants = launch_constants(
        arch, problem.queries[0].dtype, shape.head_dim, shape.num_query_heads, shape.num_kv_heads, 16
    )._replace(decode_tile_tokens=32, decode_stages=4, decode_programs=4)

    def call(index: int) -> torch.Tensor:
        query, layer = problem.queries[index], problem.layers[index]
        output = torch.empty_like(query)
        tables, contexts = batch.block_tables, batch.context_tokens
        decode(query, layer.keys, layer.values, tables, contexts, output, batch.max_context_tokens, constants)
        return output

    return [partial(call, index) for index in range(len(problem.layers))]


def _add(options: Options, problem: Problem, name: str, calls: list[Call], expected: torch.Tensor) -> None:
    """Time one kernel, and compare what it computes with what the project's does."""
    error = float((calls[0]().float() - expected.float()).abs().max() / expected.float().abs().max())
    call_us = median_us(calls, options.device)
    figures: dict[str, float] = {"us": call_us}
    rate = options.rate
    if problem.is_decode:
        gb_per_s = problem.kv_bytes / call_us / 1e3
        figures |= rate("gb_per_s", gb_per_s)
        for ceiling in ("copy", "read"):
            if most := options.results.figure("ceilings", ceiling, "gb_per_s"):
                figures |= rate(f"of_{ceiling}", gb_per_s / most)
    else:
        tflop_per_s = problem.flop / call_us / 1e6
        figures |= rate("tflop_per_s", tflop_per_s)
        if most := options.results.figure("ceilings", "multiply", "tflop_per_s"):
            figures |= rate("of_multiply", tflop_per_s / most)
    if name != "kvtwin":
        figures["difference"] = error
    wrong = {} if error <= MOST_ERROR else {"differs": True}
    options.results.add("attention", f"{problem.name} | {name}", **figures, **wrong)


if __name__ == "__main__":
    main()
