"""Which prefix lengths are worth resending: the tails behind which groups that forget keep their blocks hit-able."""

from __future__ import annotations

from kvtwin.engine.cache_groups.base import CacheGroup
from kvtwin.engine.request import Request


def worth_resending(request: Request, group: CacheGroup, *, hits_drop_a_block: bool) -> list[int]:
    """Lengths of hits, multiples of ``alignment_tokens``, that ``group`` is to serve (specification, section 10.7).

    They are the hit of the same prompt sent again, and the prefix that was seen to be shared. Where hits drop their
    last block, the same prompt may hit so much less, and so may a shared prefix (specification, section 9.10).
    """
    alignment_tokens = group.alignment_tokens
    longest = (request.num_prompt_tokens - 1) // alignment_tokens * alignment_tokens
    lengths = [longest]
    if hits_drop_a_block:
        lengths = [max(0, longest - alignment_tokens)]
        if longest + alignment_tokens <= request.num_prompt_tokens:
            lengths.append(longest)
    if request.junction_tokens:
        lengths.append(request.junction_tokens)
        if group.num_dropped_blocks:
            lengths.append(request.junction_tokens - alignment_tokens)
    return lengths
