"""The plainest program with TensorRT-LLM's rules of block reuse: lists, linear searches, no speed.

It follows a written summary of the block manager in C++ ("V1"), not its code, and shares nothing with ``engine/``.
Blocks are named by where they lie: slot 0, 1, ... of the device, slot 0, 1, ... of the host.

Open: where the summary says nothing, or two things, this is what the model does.

1.  A complete context stores its full blocks only; the partly full one still grows, and is stored at the end.
2.  All hits are claimed before any block is taken, so no hit is lost to the blocks that the request takes; then blocks
    are taken in the order of the table.
3.  The source of a copy keeps its place in the queue, and is passed over until it is copied; if nothing else is free,
    it is the victim itself: it is copied from the host, or dropped, and its slot, with its tokens, is the new block.
4.  A copy has the priority of its source, no duration, and no say of the request's ranges. Its source may be on the
    host; it stays there.
5.  A fresh block outside all ranges has priority 35; a hit keeps what it has. A claim ends a block's duration, and
    starts the range's. A block held by others can be given a new priority too.
6.  With partial reuse off, a partly filled block is never a hit, though all its tokens match.
7.  Of candidates with equal prefixes, the one that has been in the tree longest under its parent is found first.
8.  Offloading keeps what is left of a duration. A block out of the tree holds nothing, and is never offloaded.
9.  The host's lowest block is given up whatever the newcomer's priority is. An empty host block has priority 35.
10. A duration has passed as soon as refresh's time is the release's plus the duration, also for priority 35. Those that
    expire together move in the order of their ends, then of their release. The time of a release is that of the last
    refresh.
11. Events: one for each block; a block's descendants are removed before it; a block that becomes a request's own by a
    partial match is removed; every change of a priority in the tree is an update. Events name a block by all tokens
    from the root to its end.
12. The tree names the tokens only: what the summary adds to an edge (LoRA, images, salt) is left out.
"""

from collections.abc import Sequence

from tests.engine.trtllm.model_blocks import (
    DEFAULT_PRIORITY,
    DEVICE,
    HOST,
    Added,
    Block,
    Range,
    RunningSequence,
    chunks,
    retention_of_blocks,
)


class OutOfBlocksError(Exception):
    """The device has too few free blocks; nothing has changed."""


class Model:
    """Blocks of a device and of a host, a tree of what they hold, and running sequences."""

    def __init__(
        self,
        num_device_blocks: int,
        num_host_blocks: int = 0,
        tokens_per_block: int = 32,
        partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        secondary_offload_min_priority: int = 30,
        onboard_blocks: bool = True,
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.partial_reuse = partial_reuse
        self.copy_on_partial_reuse = copy_on_partial_reuse
        self.secondary_offload_min_priority = secondary_offload_min_priority
        self.onboard_blocks = onboard_blocks
        self.free = [
            [Block(DEVICE, slot) for slot in range(num_device_blocks)],
            [Block(HOST, slot) for slot in range(num_host_blocks)],
        ]
        """By level, in the order of release. The next victim is the first of the lowest priority."""
        self.root = Block(DEVICE, -1)
        self.sequences: dict[int, RunningSequence] = {}
        self.source: Block | None = None
        """What is being copied from: the last to be a victim."""
        self.now_ms = 0
        self.moves: list[tuple] = []
        self.events: list[tuple] = [("created", num_device_blocks, num_host_blocks)]

    def num_free(self) -> tuple[int, int]:
        """Free blocks of the device and of the host, those that hold something among them."""
        return len(self.free[DEVICE]), len(self.free[HOST])

    def tree(self) -> tuple:
        """The children of the root, each with its subtree (``Block.nested``)."""
        return tuple(child.nested() for child in self.root.children)

    def add_sequence(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        ranges: Sequence[Range] = (),
        decode: tuple[int, int | None] = (DEFAULT_PRIORITY, None),
    ) -> Added:
        """Give a prompt its blocks; ``decode`` is the priority and the duration of those it takes later."""
        retention = retention_of_blocks(ranges, len(tokens), self.tokens_per_block)
        table, num_matching, part = self._lookup(tokens)
        hit_tokens = len(table) * self.tokens_per_block + num_matching
        first_move = len(self.moves)
        own_part = part is not None and part.is_free_leaf()
        claimed = [*table, part] if own_part else table
        num_taken = len(retention) - len(claimed) + sum(block.level == HOST for block in claimed)
        if num_taken + sum(block in self.free[DEVICE] for block in claimed) > len(self.free[DEVICE]):
            raise OutOfBlocksError
        if own_part:
            self._leave_tree(part)
            table, part = claimed, None
        for block, kept in zip(table, retention, strict=False):
            self._claim(block, kept)
        self.source = part
        for block in table:
            self._onboard(block)
        if part:
            table = [*table, self._copy(part, num_matching)]
        table += [self._take(*(kept or (DEFAULT_PRIORITY, None))) for kept in retention[len(table) :]]
        for block in table:
            block.num_holders += 1
        self.sequences[sequence_id] = RunningSequence(list(tokens), decode, table)
        return Added([block.slot for block in table], hit_tokens, self.moves[first_move:])

    def add_token(self, sequence_id: int, token: int) -> int | None:
        """The device slot of the block taken for the token, if the last one was full."""
        sequence, block = self.sequences[sequence_id], None
        if len(sequence.tokens) == len(sequence.table) * self.tokens_per_block:
            block = self._take(*sequence.decode)
            block.num_holders = 1
            sequence.table.append(block)
        sequence.tokens.append(token)
        return block.slot if block else None

    def store_context(self, sequence_id: int) -> None:
        """The context is computed: its full blocks enter the tree."""
        self._store(self.sequences[sequence_id], partly_full_too=False)

    def remove_sequence(self, sequence_id: int) -> None:
        """The sequence ends: its blocks enter the tree, also the partly full one, and are released, the last first."""
        sequence = self.sequences.pop(sequence_id)
        self._store(sequence, partly_full_too=True)
        for block in reversed(sequence.table):
            block.num_holders -= 1
            if block.num_holders == 0:
                if block.duration_ms is not None:
                    block.expires_ms = self.now_ms + block.duration_ms
                self.free[DEVICE].append(block)

    def refresh(self, now_ms: int) -> None:
        """Blocks whose duration has passed since their release go to the end of the default queue."""
        self.now_ms = now_ms
        for free in self.free:
            expired = [block for block in free if block.expires_ms is not None and block.expires_ms <= now_ms]
            for block in sorted(expired, key=lambda block: block.expires_ms):
                free.remove(block)
                free.append(block)
                self._set_priority(block, DEFAULT_PRIORITY)
                block.duration_ms = block.expires_ms = None

    def _lookup(self, tokens: Sequence[int]) -> tuple[list[Block], int, Block | None]:
        """The full blocks that hit; then how many tokens of which block match further."""
        full: list[Block] = []
        parent = self.root
        for chunk in chunks(tokens, self.tokens_per_block):
            child = parent.child(chunk)
            if child is None or len(chunk) < self.tokens_per_block:
                return full, *self._best_partial(parent, chunk)
            full.append(child)
            parent = child
        return full, 0, None

    def _best_partial(self, parent: Block, chunk: tuple[int, ...]) -> tuple[int, Block | None]:
        best: tuple[int, Block | None] = (0, None)
        for child in parent.children if self.partial_reuse else ():
            num_matching = child.num_matching(chunk)
            if num_matching > best[0] and (child.is_free_leaf() or self.copy_on_partial_reuse):
                best = num_matching, child
        return best

    def _copy(self, source: Block, num_matching: int) -> Block:
        """A new block with the tokens that match; the source itself if it is the last free one."""
        block = self._take(source.priority, None)
        if block is not source:
            self.moves.append(("copy", source.level, source.slot, block.slot, num_matching))
        self.source = None
        return block

    def _claim(self, block: Block, kept: tuple[int, int | None] | None) -> None:
        if block in self.free[block.level]:
            self.free[block.level].remove(block)
        block.duration_ms = block.expires_ms = None
        if kept:
            self._set_priority(block, kept[0])
            block.duration_ms = kept[1]

    def _take(self, priority: int, duration_ms: int | None) -> Block:
        """A block of the device; what it held goes to the host, or is lost with all that followed it."""
        block = self._victim(DEVICE)
        worth_it = block.parent and block.priority >= self.secondary_offload_min_priority
        if worth_it and self.free[HOST] and self.onboard_blocks:
            offloaded, block = block, self._victim(HOST)
            self.moves.append(("offload", offloaded.slot, block.slot))
            self._swap(offloaded, block)
            self.free[HOST].append(offloaded)
        self._leave_tree(block)
        block.priority, block.duration_ms, block.expires_ms = priority, duration_ms, None
        return block

    def _victim(self, level: int) -> Block:
        if not self.free[level]:
            raise OutOfBlocksError
        victim = min(self.free[level], key=lambda block: (block is self.source, block.priority))
        self.free[level].remove(victim)
        return victim

    def _onboard(self, block: Block) -> None:
        if block.level == HOST:
            taken = self._take(DEFAULT_PRIORITY, None)
            self.moves.append(("onboard", block.slot, taken.slot))
            self._swap(block, taken)
            self.free[HOST].append(taken)

    def _swap(self, block: Block, other: Block) -> None:
        """Exchange where two blocks lie; ``block`` is the one with content."""
        block.level, other.level = other.level, block.level
        block.slot, other.slot = other.slot, block.slot
        if block.parent:
            self.events.append(("updated", block.prefix(), "level", other.level, block.level))

    def _set_priority(self, block: Block, priority: int) -> None:
        if block.parent and block.priority != priority:
            self.events.append(("updated", block.prefix(), "priority", block.priority, priority))
        block.priority = priority

    def _leave_tree(self, block: Block) -> None:
        for child in list(block.children):
            self._leave_tree(child)
        if block.parent:
            self.events.append(("removed", block.prefix()))
            block.parent.children.remove(block)
            block.parent, block.tokens = None, ()

    def _store(self, sequence: RunningSequence, partly_full_too: bool) -> None:
        """Hang the sequence's blocks into the tree; where one with the same tokens hangs, that one stays."""
        parent = self.root
        for block, chunk in zip(sequence.table, chunks(sequence.tokens, self.tokens_per_block), strict=False):
            if len(chunk) < self.tokens_per_block and not partly_full_too:
                break
            child = parent.child(chunk)
            if child is None:
                child, block.parent, block.tokens = block, parent, chunk
                parent.children.append(block)
                self.events.append(("stored", block.prefix(), chunk, block.priority, block.level))
            parent = child
