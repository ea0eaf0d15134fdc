"""Second keys of blocks of full attention, where a hash covers only a part of a block.

Such a block is cached under the key of the whole and, if the prompt's last hash short of its last token ends inside it,
under the key of that part too. No lookup asks for a part, so a second key changes no decision; it is counted, published
and evicted with its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kvtwin.engine.pool_listener import PoolListener


class BlockParts(PoolListener):
    """The second key of each block that has one.

    Invariant (checked by :mod:`kvtwin.engine.invariants`): a block with a second key has its own one too.
    """

    def __init__(self) -> None:
        self._key_of_block: dict[int, int] = {}
        self._num_blocks_of_key: Counter[int] = Counter()

    @property
    def blocks(self) -> Iterable[int]:
        """Blocks that have a second key."""
        return self._key_of_block

    @property
    def num_keys(self) -> int:
        """Distinct second keys."""
        return len(self._num_blocks_of_key)

    def add(self, block: int, key: int) -> bool:
        """Give ``block`` its second key; return whether it had none."""
        if block in self._key_of_block:
            return False
        self._key_of_block[block] = key
        self._num_blocks_of_key[key] += 1
        return True

    def key_of(self, block: int) -> int | None:
        """The second key of ``block``; None if it has none."""
        return self._key_of_block.get(block)

    def taken(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            key = self._key_of_block.pop(block, None)
            if key is not None:
                self._num_blocks_of_key[key] -= 1
                if not self._num_blocks_of_key[key]:
                    del self._num_blocks_of_key[key]

    def cleared(self) -> None:
        self._key_of_block.clear()
        self._num_blocks_of_key.clear()
