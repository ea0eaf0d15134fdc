"""Copy-on-write forks: a request goes on from the tokens of another one and shares the blocks that hold them.

The blocks may end inside a block. Whoever writes into that one while others hold it gets a copy of it first; the last
holder writes in place. vLLM V1 has no such thing: its parallel samples share whole blocks, through the prefix cache
(docs/parallel-samples.md has both).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.cache_groups import CacheGroup
from kvtwin.engine.executor import BlockCopy, ReplacedBlock, Step
from kvtwin.engine.hit import Hit
from kvtwin.engine.request import BlockTables, Request, RequestStatus


class Forks:
    """Which requests share a block that they have yet to write into.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a request is in ``unwritten``, with the tokens that it
    shares, from its fork until it writes or loses its blocks, if the last of these tokens leave room in their block.
    While nobody is in it, no block that a running request is about to write is shared or has a key.
    """

    def __init__(self, pool: BlockPool, groups: Sequence[CacheGroup], hash_block_size: int | None) -> None:
        """``hash_block_size`` None means that nothing is cached."""
        self._pool = pool
        self._groups = groups
        self._hash_block_size = hash_block_size
        self.unwritten: dict[Request, int] = {}
        self.any_yet = False
        """Whether anything was ever forked."""
        self._copies: list[BlockCopy] = []
        self._replaced: list[ReplacedBlock] = []
        self._sources: list[int] = []
        """Blocks that this step copies and nobody needs any more."""

    def must_wait(self, request: Request, step: Step) -> bool:
        """Whether ``request`` may soon go on from its parent's prompt, which is not computed yet.

        ``step`` is being scheduled: its tokens count. Only the first admission is a fork.
        """
        parent = request.parent
        if parent is None or request.status is not RequestStatus.WAITING:
            return False
        if parent.status is RequestStatus.RUNNING:
            return not _has_prompt(parent, step)
        return parent.status is RequestStatus.WAITING

    def find_hit(self, request: Request, step: Step) -> Hit | None:
        """What the parent of ``request`` holds, if it runs and its prompt is computed once ``step`` has run.

        None: ``request`` has to compute its prompt.
        """
        parent = request.parent
        if parent is None or request.status is not RequestStatus.WAITING or parent.status is not RequestStatus.RUNNING:
            return None
        tables = self.shared_tables(parent, request.num_prompt_tokens) if _has_prompt(parent, step) else None
        return None if tables is None else Hit(tables, request.num_prompt_tokens - 1, is_fork=True)

    def shared_tables(self, parent: Request, num_tokens: int) -> BlockTables | None:
        """The blocks of ``parent`` from which a request can compute token ``num_tokens`` - 1 anew, and go on.

        None when ``parent`` does not hold them all any more.
        """
        tables = []
        for group, table in zip(self._groups, parent.block_tables, strict=True):
            start, end = group.num_dead_blocks(num_tokens - 1), -(-num_tokens // group.block_size)
            blocks = table[start:end]
            if len(blocks) < end - start or NULL_BLOCK in blocks:
                return None
            tables.append([NULL_BLOCK] * start + blocks)
        return tables

    def fork(self, parent: Request, child: Request, num_tokens: int, *, num_reserved_blocks: int = 0) -> bool:
        """Let ``child``, which holds nothing, share the blocks of ``parent`` that hold its first ``num_tokens`` tokens.

        False, and nothing changes, when ``parent`` lacks some of them, or when the copies that this and earlier forks
        will ask for would not leave ``num_reserved_blocks`` free.
        """
        tables = self.shared_tables(parent, num_tokens)
        num_tails = sum(num_tokens % group.block_size > 0 for group in self._groups)
        num_available_blocks = self._pool.num_free_blocks - num_reserved_blocks
        if tables is None or self.num_copies_to_come() + num_tails > num_available_blocks:
            return False
        for table in tables:
            self._pool.touch(table)
        child.block_tables = tables
        child.num_forgotten_blocks = [0] * len(tables)
        child.num_registered_blocks = [
            min(registered, num_tokens // group.block_size)
            for registered, group in zip(parent.num_registered_blocks, self._groups, strict=True)
        ]
        child.num_slots = num_tokens
        self.any_yet = True
        if num_tails:
            self.unwritten[child] = num_tokens
            parent.num_slots = min(parent.num_slots, num_tokens)  # so that its next write is looked at
        if self._hash_block_size:
            num_keys = num_tokens // self._hash_block_size
            parent.content.extend_keys(parent.block_keys, num_keys)
            child.block_keys[:num_keys] = parent.block_keys[:num_keys]
        return True

    def num_copies_to_come(self) -> int:
        """Blocks that forks will be given as copies if all go on: all holders of a block but the last to write it."""
        num_copies = 0
        if not self.unwritten:
            return num_copies
        for index, group in enumerate(self._groups):
            writers = Counter(
                request.block_tables[index][num_tokens // group.block_size]
                for request, num_tokens in self.unwritten.items()
                if num_tokens % group.block_size
            )
            for block, num_writers in writers.items():
                # A block with a key belongs to the cache: even its last holder must not write it.
                has_key = self._pool.keys[block] != NO_KEY
                num_copies += num_writers if has_key else min(num_writers, self._pool.ref_counts[block] - 1)
        return num_copies

    def blocks_to_copy(self, request: Request) -> list[tuple[int, int]]:
        """Group and table position of each block that ``request`` must not write its next token into."""
        positions = []
        for index, (group, table) in enumerate(zip(self._groups, request.block_tables, strict=True)):
            position = request.num_computed_tokens // group.block_size
            if position < len(table):
                block = table[position]
                if self._pool.ref_counts[block] > 1 or self._pool.keys[block] != NO_KEY:
                    positions.append((index, position))
        return positions

    def copy(self, request: Request) -> None:
        """Put new blocks in the place of those :meth:`blocks_to_copy`, and order the copies into them."""
        if not self.unwritten:
            return
        positions = self.blocks_to_copy(request)
        self.unwritten.pop(request, None)
        blocks = self._pool.allocate(len(positions))
        for (index, position), block in zip(positions, blocks, strict=True):
            table = request.block_tables[index]
            source = table[position]
            self._copies.append(BlockCopy(index, source, block))
            if self._pool.ref_counts[source] > 1:
                self._pool.free([source])
            else:  # nobody may have it before it is copied
                self._sources.append(source)
            table[position] = block
            self._replaced.append(ReplacedBlock(request, index, position, block))

    def take_copies(self) -> tuple[list[BlockCopy], list[ReplacedBlock]]:
        """Copies ordered, and table entries that changed, since the last call: the step is decided."""
        self._pool.free(self._sources)
        self._sources.clear()
        taken = self._copies, self._replaced
        self._copies, self._replaced = [], []
        return taken

    def roll_back(self, request: Request) -> None:
        """Undo the copies for ``request``, whose step will not run."""
        sources = {(one.group_index, one.destination): one.source for one in self._copies}
        undone = [one for one in self._replaced if one.request is request]
        self._replaced = [one for one in self._replaced if one.request is not request]
        for _, index, position, block in undone:
            source = sources.pop((index, block))
            if source in self._sources:
                self._sources.remove(source)
            else:
                self._pool.touch([source])
            request.block_tables[index][position] = source
            self._pool.free([block])
        self._copies = [one for one in self._copies if (one.group_index, one.destination) in sources]


class NoForks:
    """Where no request goes on from another one's blocks."""

    def must_wait(self, request: Request, step: Step) -> bool:
        """Never."""
        return False

    def find_hit(self, request: Request, step: Step) -> Hit | None:
        """Nothing."""
        return None

    def take_copies(self) -> tuple[list[BlockCopy], list[ReplacedBlock]]:
        """Nothing: no block is shared before it is full."""
        return [], []


def _has_prompt(parent: Request, step: Step) -> bool:
    """Whether the prompt of a running request is computed once ``step`` has run."""
    num_missing_tokens = parent.num_prompt_tokens - parent.num_computed_tokens
    if num_missing_tokens <= 0:
        return True
    return any(
        request is parent and num_tokens >= num_missing_tokens
        for request, num_tokens in zip(step.requests, step.num_tokens, strict=True)
    )
