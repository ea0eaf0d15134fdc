"""How long calls take on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

NUM_ROTATED = 4
"""Copies of the data that calls go through in turn, so that a cache of the device does not hold what they read."""


def median_us(calls: Sequence[Callable[[], object]], device: torch.device, *, num_repeats: int = 30) -> float:
    """Microseconds per call: the median over repeats of all ``calls``, one after the other.

    On a GPU they are replayed as one CUDA graph, so that no launch is waited for; on a CPU they are called.
    """
    if device.type == "cpu":
        times_s = [_wall_s(calls) for _ in range(max(3, num_repeats // 10))]
        return 1e6 * median(times_s) / len(calls)
    graph = _captured(calls)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(num_repeats)]
    for _ in range(3):
        graph.replay()
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * median(start.elapsed_time(end) for start, end in events) / len(calls)


def _captured(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def _wall_s(calls: Sequence[Callable[[], object]]) -> float:
    start_s = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - start_s
