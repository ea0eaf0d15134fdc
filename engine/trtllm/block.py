"""A block, and its place in the radix tree."""

from __future__ import annotations

from collections.abc import Iterator

from kvtwin.engine.trtllm.retention import DEFAULT_PRIORITY

TOKEN_BYTES = 8
"""Of one mark (:mod:`kvtwin.engine.token_marks`)."""

Edge = bytes
"""Marks of a block's tokens, one after the other: what tells it from its siblings."""


class Block:
    """One block: who holds it, how long it is worth keeping, and where it hangs in the tree.

    It is the block's identity that a request's table names; its memory, ``slot``, is on the device or in the host and
    changes when content moves between them.

    Invariants (checked by :mod:`kvtwin.engine.trtllm.invariants`): a block in the tree has a parent that is in it too;
    ``edge`` is empty exactly when it is not; a block in the host has no references.
    """

    __slots__ = (
        "block_id",
        "children",
        "duration_ns",
        "edge",
        "expiry",
        "on_device",
        "parent",
        "priority",
        "refs",
        "slot",
    )

    def __init__(self, block_id: int, *, on_device: bool) -> None:
        self.block_id = block_id
        self.slot = block_id
        self.on_device = on_device
        self.refs = 0
        """Sequences that hold it."""
        self.priority = DEFAULT_PRIORITY
        self.duration_ns: int | None = None
        """How long the priority lasts after the release; None: for ever."""
        self.expiry: tuple[int, int] | None = None
        """While it is free: when the priority ends, and which release that was."""
        self.parent: Block | None = None
        self.edge: Edge = b""
        self.children: dict[Edge, dict[Edge, Block]] = {}
        """By the first token, then by the whole edge; the oldest first."""

    @property
    def num_tokens(self) -> int:
        """Tokens that others can find in it."""
        return len(self.edge) // TOKEN_BYTES

    def child(self, edge: Edge) -> Block | None:
        """The child behind exactly ``edge``."""
        return self.children.get(edge[:TOKEN_BYTES], {}).get(edge)

    def children_like(self, edge: Edge) -> Iterator[Block]:
        """Children that share at least one leading token with ``edge``, the oldest first."""
        return iter(self.children.get(edge[:TOKEN_BYTES], {}).values())

    def all_children(self) -> Iterator[Block]:
        """Every child."""
        for siblings in self.children.values():
            yield from siblings.values()

    def attach(self, child: Block, edge: Edge) -> None:
        """Hang ``child``, which is in no tree, behind ``edge``."""
        self.children.setdefault(edge[:TOKEN_BYTES], {})[edge] = child
        child.parent, child.edge = self, edge

    def detach(self) -> None:
        """Leave the tree. The block must have no children."""
        assert self.parent is not None
        siblings = self.parent.children[self.edge[:TOKEN_BYTES]]
        del siblings[self.edge]
        if not siblings:
            del self.parent.children[self.edge[:TOKEN_BYTES]]
        self.parent, self.edge = None, b""

    def __repr__(self) -> str:
        where = "device" if self.on_device else "host"
        return f"<Block {self.block_id} {where} refs {self.refs} priority {self.priority} tokens {self.num_tokens}>"


def num_common_tokens(one: Edge, other: Edge) -> int:
    """Leading tokens that two edges share."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most // TOKEN_BYTES
    shared = 0
    while one[shared : shared + TOKEN_BYTES] == other[shared : shared + TOKEN_BYTES]:
        shared += TOKEN_BYTES
    return shared // TOKEN_BYTES
