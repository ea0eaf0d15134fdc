"""Which free block is handed out next: 101 queues, one per priority, for each of device and host."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count

from kvtwin.engine.trtllm.block import Block
from kvtwin.engine.trtllm.retention import DEFAULT_PRIORITY, KEEPS, BlockRetention


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
        self._serial = count()
        for block in blocks:
            self._append(block)

    def front(self) -> Block:
        """The block that is handed out next. ValueError: none is free."""
        return next(iter(self.queues[min(self.queues)]))

    def claim(self, block: Block, retention: BlockRetention = KEEPS) -> None:
        """Take ``block`` out of its queue if it is in one; what ``retention`` says goes before what it had."""
        if block.refs == 0:
            self._remove(block)
        if retention.priority is not None:
            block.priority = retention.priority
        block.duration_ns = retention.duration_ns
        block.expires_ns = None

    def release(self, block: Block, now_ns: int, *, to_front: bool = False) -> None:
        """Queue ``block``, which nobody holds any more."""
        self._append(block)
        if to_front:
            self.queues[block.priority].move_to_end(block, last=False)
        if block.duration_ns is not None:
            block.expires_ns = now_ns + block.duration_ns
            heapq.heappush(self._expiring, (block.expires_ns, next(self._serial), block))

    def refresh(self, now_ns: int) -> list[tuple[Block, int]]:
        """Let priorities expire whose time is over by now; these blocks, each with the priority that it had."""
        expired = []
        while self._expiring and self._expiring[0][0] <= now_ns:
            expires_ns, _, block = heapq.heappop(self._expiring)
            if block.expires_ns != expires_ns or block not in self.queues.get(block.priority, ()):
                continue
            expired.append((block, block.priority))
            self._remove(block)
            block.priority, block.duration_ns, block.expires_ns = DEFAULT_PRIORITY, None, None
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
