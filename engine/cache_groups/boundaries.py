"""Which prefix lengths are worth resending: the tails behind which groups that forget keep their blocks hit-able."""

from __future__ import annotations

from kvtwin.engine.cache_groups.base import CacheGroup
from kvtwin.engine.request import Request


def worth_resending(
    request: Request, group: CacheGroup, *, common_block_tokens: int, hits_drop_a_block: bool
) -> list[int]:
    """Lengths of hits, multiples of ``alignment_tokens``, that ``group`` is to serve (specification, section 10.7).

    They are the hit of the same prompt sent again, and the prefix that was seen to be shared. Where hits drop their
    last block, the same prompt, and a longer one, may hit so much less, and so may a shared prefix (section 9.10).
    """
    num_tokens, unit = request.num_prompt_tokens, common_block_tokens
    lengths = [num_tokens - 1]
    if hits_drop_a_block:
        lengths = [max(0, tokens // unit * unit - unit) for tokens in (num_tokens - 1, num_tokens)]
    if request.junction_tokens:
        lengths.append(request.junction_tokens)
        if group.num_dropped_blocks:
            lengths.append(request.junction_tokens - group.block_size)
    return [tokens // group.alignment_tokens * group.alignment_tokens for tokens in lengths]
