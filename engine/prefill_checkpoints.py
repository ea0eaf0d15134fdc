"""Prefill checkpoints: a prompt's last chunk also leaves an earlier state, from which the same prompt can go on.

Layers that can export a state from the middle of a chunk declare it (specification, section 10.16).
"""

from __future__ import annotations

from kvtwin.engine.request import Request
from kvtwin.engine.settings import EngineSettings


class PrefillCheckpoints:
    """Where the states lie from which later requests go on, and which chunks can leave one behind them."""

    def __init__(self, settings: EngineSettings) -> None:
        self._drops_a_unit = settings.hits_drop_a_block
        self._lookahead_tokens = settings.hash_lookahead_tokens
        self._hash_block_size = settings.hash_block_size

    def position(self, num_tokens: int, unit_tokens: int) -> int:
        """The longest prefix, a multiple of ``unit_tokens``, that a prompt of ``num_tokens`` can hit; 0 if none.

        The last token is computed for its output, and the tokens that a hash covers ahead must be there; a hit that
        drops a unit leaves enough of both.
        """
        if self._drops_a_unit:
            return max(0, num_tokens // unit_tokens - 1) * unit_tokens
        return max(0, num_tokens - max(1, self._lookahead_tokens)) // unit_tokens * unit_tokens

    def fits(self, start: int, end: int, position: int, block_size: int, alignment: int | None) -> bool:
        """Whether the chunk from ``start`` to ``end`` can leave its checkpoint at ``position``.

        The checkpoint takes the table's position before the chunk's last one, which must not be that of the state from
        which the chunk goes on.
        """
        return (
            alignment is not None
            and start % self._hash_block_size == 0
            and -(-end // block_size) - 2 > (start - 1) // block_size
            and start + self._hash_block_size <= position < end
            and (position - start) % alignment == 0
        )


def prefill_end(request: Request) -> int:
    """Where the prefill of ``request`` ends: with its prompt, or before its last output when it starts again."""
    return max(request.num_prompt_tokens, request.num_tokens - 1)
