"""How long blocks are worth keeping: priorities for ranges of a prompt's tokens, and for what is generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LOWEST_PRIORITY, DEFAULT_PRIORITY, HIGHEST_PRIORITY = 0, 35, 100


class BlockRetention(NamedTuple):
    """What a block is given when it is claimed; None keeps the priority that it has, or never ends."""

    priority: int | None
    duration_ns: int | None


KEEPS = BlockRetention(None, None)
"""No range says anything of the block."""


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Prompt tokens from ``start`` to ``end`` (exclusive; None: to the end of the prompt), and how they are kept."""

    start: int
    end: int | None
    priority: int
    duration_ns: int | None = None

    def holds(self, token: int) -> bool:
        """Whether ``token`` is one of them."""
        return self.start <= token and (self.end is None or token < self.end)


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """How the blocks of a request are kept: ``KvCacheRetentionConfig`` of the LLM API. ValueError: it cannot be."""

    ranges: tuple[TokenRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration_ns: int | None = None

    def __post_init__(self) -> None:
        for each in self.ranges:
            _check_priority(each.priority)
            end = "the end" if each.end is None else each.end
            if each.start < 0 or (each.end is not None and each.end <= each.start):
                raise ValueError(f"expected a range of at least one token from 0 on, got {each.start} to {end}")
        _check_priority(self.decode_priority)
        for one, following in zip(self.ranges, self.ranges[1:], strict=False):
            if one.end is None:
                raise ValueError(f"expected only the last range to be open, got one from {one.start} before others")
            if following.start < one.end:
                raise ValueError(
                    f"expected ranges in order that do not overlap, got {one.start} to {one.end} and then one from "
                    f"{following.start}"
                )
        for duration_ns in (self.decode_duration_ns, *(each.duration_ns for each in self.ranges)):
            if duration_ns is not None and duration_ns <= 0:
                raise ValueError("expected durations above 0")

    @property
    def decode(self) -> BlockRetention:
        """Of a block that is claimed for generated tokens."""
        return BlockRetention(self.decode_priority, self.decode_duration_ns)

    def of_prompt(self, num_tokens: int, tokens_per_block: int) -> Sequence[BlockRetention]:
        """Of each block of a prompt: that of the range which holds the block's first token."""
        return [self._at(token) for token in range(0, num_tokens, tokens_per_block)]

    def _at(self, token: int) -> BlockRetention:
        for each in self.ranges:
            if each.holds(token):
                return BlockRetention(each.priority, each.duration_ns)
        return KEEPS


def _check_priority(priority: int) -> None:
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise ValueError(f"expected a priority from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, got {priority}")
