"""The link between a GPU and its host: how long it takes to copy blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLink:
    """Copies at the link's peak rate, one after the other.

    Every GPU has a link of its own and copies its own share of a block, all at the same time. A step copies first and
    computes then, as older vLLM swapped: copies to the host, copies from the host and the step's work do not overlap.
    """

    block_bytes: int
    """Bytes of one block on one GPU, the one that has most."""
    bytes_per_s: float
    """Peak rate in one direction."""

    def duration_ns(self, num_blocks: int) -> int:
        """Nanoseconds to copy ``num_blocks`` blocks, in either direction."""
        return round(num_blocks * self.block_bytes * 1e9 / self.bytes_per_s)
