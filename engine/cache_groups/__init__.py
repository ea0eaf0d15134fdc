"""Cache groups: layers whose keys and values are kept under the same rule share block tables.

All groups of an engine take blocks from one pool (specification, section 10). A kind of group is one file here and one
entry in ``KINDS``; the manager knows only the interface of :class:`CacheGroup`.
"""

from __future__ import annotations

from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock
from kvtwin.engine.cache_groups.chunked_local import ChunkedLocalGroup
from kvtwin.engine.cache_groups.full_attention import FullAttentionGroup
from kvtwin.engine.cache_groups.sliding_window import SlidingWindowGroup
from kvtwin.engine.cache_groups.state_space import StateSpaceGroup
from kvtwin.engine.settings import EngineSettings

__all__ = ["KINDS", "CacheGroup", "FindBlock", "FullAttentionGroup", "make_groups"]

KINDS: dict[str, type[CacheGroup]] = {
    "full_attention": FullAttentionGroup,
    "sliding_window": SlidingWindowGroup,
    "chunked_local_attention": ChunkedLocalGroup,
    "mamba": StateSpaceGroup,
}
"""The class of each kind, by vLLM's name."""


def make_groups(settings: EngineSettings) -> list[CacheGroup]:
    """The groups of an engine with these settings."""
    return [KINDS[spec.kind](spec, settings) for spec in settings.group_specs]
