"""How many tokens of each prompt a step computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvtwin.engine.request import Request


class Context(NamedTuple):
    """A prompt that is not computed yet: where it stands, and what is left of it."""

    request: Request
    position: int
    num_left: int


class Chunker(Protocol):
    """Divides the token budget among prompts."""

    def sizes(self, contexts: Sequence[Context], budget: int) -> list[int]:
        """Tokens for each of ``contexts``, 0 for who has to wait."""


class WholePrompts:
    """Without chunked prefill: in order, until one does not fit."""

    def sizes(self, contexts: Sequence[Context], budget: int) -> list[int]:
        sizes = []
        for context in contexts:
            if context.num_left > budget:
                budget = 0
            sizes.append(context.num_left if budget else 0)
            budget -= sizes[-1]
        return sizes


class FirstComeFirstServed:
    """Each gets what is left of the budget; a chunk that is not the last ends where a block ends."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block

    def sizes(self, contexts: Sequence[Context], budget: int) -> list[int]:
        sizes = []
        for context in contexts:
            size = cut_at_block(context, min(context.num_left, budget), self._tokens_per_block)
            sizes.append(size)
            budget -= size
        return sizes


class EqualProgress:
    """In rounds, each gets one more block, until the budget is used up."""

    def __init__(self, tokens_per_block: int) -> None:
        self._tokens_per_block = tokens_per_block

    def sizes(self, contexts: Sequence[Context], budget: int) -> list[int]:
        sizes = [0] * len(contexts)
        grows = True
        while grows:
            grows = False
            for index, context in enumerate(contexts):
                to_boundary = self._tokens_per_block - (context.position + sizes[index]) % self._tokens_per_block
                more = min(to_boundary, context.num_left - sizes[index])
                if 0 < more <= budget:
                    sizes[index] += more
                    budget -= more
                    grows = True
        return sizes


def cut_at_block(context: Context, size: int, tokens_per_block: int) -> int:
    """``size``, or less, so that a chunk that is not the last ends where a block ends."""
    if size >= context.num_left:
        return context.num_left
    return max(0, (context.position + size) // tokens_per_block * tokens_per_block - context.position)


def make_chunker(policy: str, tokens_per_block: int, *, enabled: bool) -> Chunker:
    """The chunker of a ``context_chunking_policy``."""
    if not enabled:
        return WholePrompts()
    return EqualProgress(tokens_per_block) if policy == "EQUAL_PROGRESS" else FirstComeFirstServed(tokens_per_block)
