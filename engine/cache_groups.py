"""Cache groups: layers whose keys and values are kept under the same rule share block tables.

All groups of an engine take blocks from one pool (spec section 10).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.block_pool import BlockPool


class FullAttentionGroup:
    """Layers that look at every earlier token, so every block is kept as long as the request runs."""

    kind = "full_attention"

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self.block_size = block_size

    def find_hit(self, pool_keys: Sequence[int], max_hit_tokens: int) -> list[int]:
        """Blocks that hold the longest cached prefix of at most ``max_hit_tokens`` tokens."""
        return self._pool.lookup(pool_keys, max_hit_tokens // self.block_size)

    def blocks_to_add(self, num_slots: int, num_held_blocks: int) -> int:
        """Blocks missing from a table of ``num_held_blocks`` to have ``num_slots`` token slots."""
        return max(0, -(-num_slots // self.block_size) - num_held_blocks)
