"""What the small model of TensorRT-LLM's block reuse consists of: blocks, and what they are kept with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

DEVICE, HOST = 0, 1
DEFAULT_PRIORITY = 35

Tokens = tuple[int, ...]
Range = tuple[int, int | None, int, int | None]
"""Tokens from, to (None: all that follow), priority, duration in ms (None: for ever)."""


def retention_of_blocks(
    ranges: Sequence[Range], num_tokens: int, tokens_per_block: int
) -> list[tuple[int, int | None] | None]:
    """Priority and duration of each block: those of the range that holds its first token.

    Raises ``ValueError`` for ranges that overlap, are out of order or empty, start below 0, or go on for ever and are
    not the last.
    """
    free_from = 0
    for index, (start, end, priority, _) in enumerate(ranges):
        open_too_early = end is None and index < len(ranges) - 1
        if start < free_from or open_too_early or (end is not None and end <= start) or not 0 <= priority <= 100:
            raise ValueError(f"range {index} of {ranges}")
        free_from = end if end is not None else start
    found = []
    for first in range(0, num_tokens, tokens_per_block):
        holding = [
            (p, duration) for start, end, p, duration in ranges if start <= first and (end is None or first < end)
        ]
        found.append(holding[0] if holding else None)
    return found


def chunks(tokens: Sequence[int], tokens_per_block: int) -> Iterator[Tokens]:
    """What can be hit or stored, by blocks: all tokens but the last."""
    for start in range(0, len(tokens) - 1, tokens_per_block):
        yield tuple(tokens[start : min(start + tokens_per_block, len(tokens) - 1)])


@dataclass(eq=False)
class Block:
    """A block, where it lies, and its place in the tree: ``parent`` is None for one that is not there."""

    level: int
    slot: int
    priority: int = DEFAULT_PRIORITY
    duration_ms: int | None = None
    expires_ms: int | None = None
    num_holders: int = 0
    tokens: Tokens = ()
    parent: "Block | None" = None
    children: list["Block"] = field(default_factory=list)

    def prefix(self) -> Tokens:
        """All tokens from the root to this block's end."""
        return (self.parent.prefix() if self.parent else ()) + self.tokens

    def child(self, tokens: Tokens) -> "Block | None":
        """The child with these tokens."""
        return next((child for child in self.children if child.tokens == tokens), None)

    def is_free_leaf(self) -> bool:
        """Whether nobody holds it, and nothing follows it in the tree."""
        return self.num_holders == 0 and not self.children

    def num_matching(self, tokens: Tokens) -> int:
        """How many tokens it begins with that ``tokens`` begins with too."""
        pairs = list(zip(self.tokens, tokens, strict=False))
        return next((index for index, (own, other) in enumerate(pairs) if own != other), len(pairs))

    def nested(self) -> tuple:
        """The subtree: tokens, level, slot, priority, children."""
        return (self.tokens, self.level, self.slot, self.priority, tuple(child.nested() for child in self.children))


@dataclass
class RunningSequence:
    """A running sequence: its tokens, its blocks, and what its decode blocks are kept with."""

    tokens: list[int]
    decode: tuple[int, int | None]
    table: list[Block]


@dataclass(frozen=True)
class Added:
    """A new sequence: the device slots of its blocks, the tokens it found, and what was moved for it, in order.

    Moves are ("offload", device slot, host slot), ("onboard", host slot, device slot) and
    ("copy", level, slot, device slot, number of tokens).
    """

    table: list[int]
    hit_tokens: int
    moves: list[tuple]
