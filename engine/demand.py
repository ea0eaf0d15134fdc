"""What a request asks of the pool."""

from __future__ import annotations

from typing import NamedTuple


class Demand(NamedTuple):
    """Blocks that a request asks for, and what there is."""

    num_missing_blocks: int
    """For the tokens of this step; at admission, unless told otherwise, for all known tokens."""
    num_free_blocks: int
    num_claimed_blocks: int = 0
    """Free ones that the request's own hit takes, that are read from the host, or that forks will need as copies."""
    num_reserved_blocks: int = 0
    """Free ones that admission leaves free (the watermark)."""

    @property
    def num_available_blocks(self) -> int:
        """Free ones that the request may have; negative where even its hit does not fit."""
        return self.num_free_blocks - self.num_claimed_blocks - self.num_reserved_blocks

    @property
    def is_met(self) -> bool:
        """Whether they are enough."""
        return self.num_missing_blocks <= self.num_available_blocks
