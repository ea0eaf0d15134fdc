"""CUDA graphs: a decode step's hundreds of kernels, launched at once instead of one after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch

from kvtwin.gpu.step_inputs import StepInputs

BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sequences of a graph. A smaller batch is filled up; a larger one runs without a graph."""

Outputs = TypeVar("Outputs")


class Graph(Protocol):
    """A function's work on the device, recorded once."""

    def capture(self, function: Callable[[], Outputs]) -> Outputs:
        """Record ``function``. The tensors that it returns are filled by every replay."""

    def replay(self) -> None:
        """Do the work again, on what its input tensors hold now."""


class CudaGraph:
    """The real one. Graphs of one ``pool`` share their memory: none may run while another does."""

    def __init__(self, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool

    def capture(self, function: Callable[[], Outputs]) -> Outputs:
        """See :class:`Graph`. The function runs once before, so that kernels are compiled and libraries are set up."""
        function()
        with torch.cuda.graph(self._graph, pool=self._pool):
            return function()

    def replay(self) -> None:
        """See :class:`Graph`."""
        self._graph.replay()


def graph_maker() -> Callable[[], CudaGraph]:
    """Makes graphs of one pool."""
    return partial(CudaGraph, torch.cuda.graph_pool_handle())


class DecodeGraphs(Generic[Outputs]):
    """Graphs of ``compute`` for steps in which every sequence has one token and delivers another.

    ``compute`` depends on nothing but tensors on the device. There is a graph per padded batch size; they read their
    inputs from one buffer. Sequences that fill up a batch are those of ``dummy_row``: each sees a single token, in
    block 0, stores no keys and values, and has its output token written into its own row.
    """

    def __init__(
        self,
        compute: Callable[[StepInputs], Outputs],
        *,
        max_sequences: int,
        max_context_tokens: int,
        dummy_row: int,
        device: torch.device,
        make_graph: Callable[[], Graph],
    ) -> None:
        """Captures the graphs that batches of up to ``max_sequences`` need, the largest first: the others find room
        in its memory."""
        self.sizes = padded_sizes(max_sequences)
        # rows, computed tokens, tokens to compute, whether keys and values are stored
        self._padding = torch.tensor([[dummy_row], [0], [1], [0]], device=device)
        self._buffer = self._padding.repeat(1, self.sizes[-1])
        self._max_context_tokens = max_context_tokens
        self._captured: dict[int, tuple[Graph, Outputs]] = {}
        with torch.inference_mode():
            for size in reversed(self.sizes):
                graph = make_graph()
                self._captured[size] = graph, graph.capture(partial(compute, self._inputs(size)))

    def run(self, inputs: StepInputs) -> Outputs | None:
        """What ``compute`` returns for ``inputs`` and the padding behind; it holds until the next run.

        None if no graph fits: nothing was done.
        """
        num_sequences = len(inputs.order)
        one_token_each = inputs.total_tokens == len(inputs.sampling) == num_sequences
        if num_sequences > self.sizes[-1] or not one_token_each:
            return None
        size = self.sizes[bisect_left(self.sizes, num_sequences)]
        self._buffer[:, :num_sequences] = torch.stack(
            (inputs.rows, inputs.num_computed, inputs.num_tokens, inputs.writes)
        )
        self._buffer[:, num_sequences:size] = self._padding
        graph, outputs = self._captured[size]
        graph.replay()
        return outputs

    def _inputs(self, size: int) -> StepInputs:
        return StepInputs(
            list(range(size)),
            *self._buffer[:, :size],
            sampling=torch.arange(size, device=self._buffer.device),
            num_decodes=size,
            total_tokens=size,
            max_query_tokens=1,
            max_context_tokens=self._max_context_tokens,
        )


def padded_sizes(max_sequences: int) -> list[int]:
    """Batch sizes to which every batch of up to ``max_sequences`` can be filled up, if there are any as large."""
    needed = sum(size < max_sequences for size in BATCH_SIZES) + 1
    return list(BATCH_SIZES[:needed])
