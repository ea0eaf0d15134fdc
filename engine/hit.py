"""What a request finds in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtwin.engine.host_memory.host_pool import HostLoad
from kvtwin.engine.request import BlockTables


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found: per group, the blocks of the longest cached prefix."""

    block_tables: BlockTables
    num_tokens: int
    num_phantom_tokens: int = 0
    """Tokens of vLLM's answer that lie in blocks which no step ever filled."""
    loads: Sequence[HostLoad] = ()
    """Positions whose content lies in the host; the tables hold null blocks there."""
    num_external_tokens: int = 0
    """Tokens that only the offload tier had, or a connector."""
    is_swapped: bool = False
    """Whether this is what a preempted request had, not what a lookup found."""
    is_fork: bool = False
    """Whether this is what the request's parent holds: all of the prompt but the last token."""
    is_held: bool = False
    """Whether the request has these blocks already: a connector loaded them, no lookup found them."""
    is_loading: bool = False
    """Whether a connector brings the external tokens later: nobody may hit them before."""
