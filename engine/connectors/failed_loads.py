"""Loads of which a part did not arrive (specification, section 18): what of each request is still worth something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from kvtwin.engine.request import Request


def valid_prefixes(
    requests: Iterable[Request],
    invalid_blocks: AbstractSet[int],
    num_scheduled_tokens: Mapping[Request, int],
    block_size: int,
) -> tuple[dict[Request, int], set[int]]:
    """Computed tokens left to each request that has an invalid block, and the blocks from these on.

    ``num_scheduled_tokens`` are those of the step whose result is processed. Of several requests that share an invalid
    block, the first computes it again: to the others it counts as computed.
    """
    left: dict[Request, int] = {}
    worthless: set[int] = set()  # its order is that of vLLM's, and of the KV events
    computed_again: set[int] = set()
    for request in requests:
        num_loaded_tokens = request.num_computed_tokens - num_scheduled_tokens.get(request, 0)
        (table,) = request.block_tables
        end = max(0, -(-num_loaded_tokens // block_size))
        bad = [index for index, block in enumerate(table[:end]) if block in invalid_blocks]
        if not bad:
            continue
        own = [index for index in bad if table[index] not in computed_again]
        computed_again.update(table[index] for index in own)
        left[request] = own[0] * block_size if own else num_loaded_tokens
        if own:
            worthless.update(table[own[0] :])
    return left, worthless
