"""Which free block is handed out next: 101 queues, one per priority, for each of device and host."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count

from kvtwin.engine.trtllm.block import Block
from kvtwin.engine.trtllm.retention import DEFAULT_PRIORITY, KEEPS, BlockRetention

_RELEASES = count()
"""Numbers releases, of all memories: a block moves between them."""


class EvictionQueues:
    """Free blocks of one memory in the order in which they are handed out.

    The front of the lowest priority's queue is next; equal priorities: the least recently released. A release appends.
    A priority that lasts for a while is the default one again after it, at the end of that queue, from the next
    :meth:`refresh` on.

    Invariants (checked by :mod:`kvtwin.engine.trtllm.invariants`): a block is in the queue of its own priority, and in
    no other, exactly when it is free and in this memory; ``num_free`` counts them.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.queues: dict[int, OrderedDict[Block, None]] = {}
        """By priority; queues that are empty are left out."""
        self.num_free = 0
        self._expiring: list[tuple[int, int, Block]] = []
        for block in blocks:
            self._append(block)

    def front(self, avoid: Block | None = None) -> Block:
        """The block that is handed out next; ``avoid`` only if it is the last. ValueError: none is free."""
        first = next(iter(self.queues[min(self.queues)]))
        if first is not avoid:
            return first
        others = (block for priority in sorted(self.queues) for block in self.queues[priority] if block is not avoid)
        return next(others, first)

    def claim(self, block: Block, retention: BlockRetention = KEEPS) -> None:
        """Take ``block`` out of its queue if it is in one; what ``retention`` says goes before what it had."""
        if block.refs == 0:
            self._remove(block)
        if retention.priority is not None:
            block.priority = retention.priority
        block.duration_ns = retention.duration_ns
        block.expiry = None

    def release(self, block: Block, now_ns: int, *, to_front: bool = False) -> None:
        """Queue ``block``, which nobody holds any more."""
        self._append(block)
        if to_front:
            self.queues[block.priority].move_to_end(block, last=False)
        if block.duration_ns is not None:
            block.expiry = now_ns + block.duration_ns, next(_RELEASES)
            heapq.heappush(self._expiring, (*block.expiry, block))

    def refresh(self, now_ns: int) -> list[tuple[Block, int]]:
        """Let priorities expire whose time is over by now; these blocks, each with the priority that it had."""
        expired = []
        while self._expiring and self._expiring[0][0] <= now_ns:
            expires_ns, serial, block = heapq.heappop(self._expiring)
            if block.expiry != (expires_ns, serial):  # claimed since
                continue
            expired.append((block, block.priority))
            self._remove(block)
            block.priority, block.duration_ns, block.expiry = DEFAULT_PRIORITY, None, None
            self._append(block)
        return expired

    def _append(self, block: Block) -> None:
        self.queues.setdefault(block.priority, OrderedDict())[block] = None
        self.num_free += 1

    def _remove(self, block: Block) -> None:
        queue = self.queues[block.priority]
        del queue[block]
        if not queue:
            del self.queues[block.priority]
        self.num_free -= 1
