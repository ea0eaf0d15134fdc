"""Cache groups: layers whose keys and values are kept under the same rule share block tables.

All groups of an engine take blocks from one pool (specification, section 10). A kind of group is one file here and one
entry in ``KINDS``; the manager knows only the interface of :class:`CacheGroup`.
"""

from __future__ import annotations

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, Span
from kvtwin.engine.cache_groups.chunked_local import ChunkedLocalGroup
from kvtwin.engine.cache_groups.full_attention import FullAttentionGroup, PartlyHitFullAttentionGroup
from kvtwin.engine.cache_groups.sliding_window import SlidingWindowGroup
from kvtwin.engine.cache_groups.state_space import StateSpaceGroup, UncachedStateGroup
from kvtwin.engine.settings import EngineSettings

__all__ = ["KINDS", "CacheGroup", "FindBlock", "FullAttentionGroup", "Span", "StateSpaceGroup", "make_groups"]

KINDS: dict[str, type[CacheGroup]] = {
    "full_attention": FullAttentionGroup,
    "sliding_window": SlidingWindowGroup,
    "chunked_local_attention": ChunkedLocalGroup,
    "mamba": StateSpaceGroup,
}
"""The class of each kind, by vLLM's name."""


def make_groups(settings: EngineSettings) -> list[CacheGroup]:
    """The groups of an engine with these settings."""
    return [_kind(spec, settings)(spec, settings) for spec in settings.group_specs]


def _kind(spec: CacheGroupSpec, settings: EngineSettings) -> type[CacheGroup]:
    if spec.kind == "mamba" and not settings.enable_prefix_caching:
        return UncachedStateGroup
    if spec.kind == "full_attention" and settings.hits_parts and spec.block_size > settings.hash_block_size:
        return PartlyHitFullAttentionGroup
    return KINDS[spec.kind]
