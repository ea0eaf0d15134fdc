"""The options for host memory: swapping and offloading."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.settings import PREEMPTION_MODES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, Number

DEFAULT_SWAP_SPACE_GIB = 4.0
"""Older vLLM's."""
_GIBIBYTES = Number("GIB", 0, 1 << 20)


@dataclass(frozen=True, kw_only=True)
class HostMemoryOptions:
    """Host memory (see docs/host-memory.md)."""

    preemption_mode: str = option(
        "recompute",
        Choice(PREEMPTION_MODES),
        "how a preempted request gets its KV cache back: recompute it (vLLM), or swap it to host memory",
    )
    swap_space: float | None = option(
        None,
        _GIBIBYTES,
        f"host memory per GPU for --preemption-mode swap (default: {DEFAULT_SWAP_SPACE_GIB:g})",
    )
    kv_offloading_size: float | None = option(
        None, _GIBIBYTES, "host memory for cached blocks that the GPU evicts, in total over all GPUs"
    )
    kv_offloading_backend: str = option("native", Choice(("native", "lmcache")), "only native is modelled")
