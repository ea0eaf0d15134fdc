"""The blocks of TensorRT-LLM's V1 manager for one window size: reuse, partial reuse, eviction, and the host tier."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import takewhile
from typing import NamedTuple

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.cache_groups import FindBlock
from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.engine.pool_listener import PoolListener
from kvtwin.engine.request import Request
from kvtwin.engine.token_marks import TokenMarks
from kvtwin.engine.trtllm.block import TOKEN_BYTES, Block, Edge, num_common_tokens
from kvtwin.engine.trtllm.events import EventLog, NoEvents
from kvtwin.engine.trtllm.eviction_queues import EvictionQueues
from kvtwin.engine.trtllm.retention import DEFAULT_PRIORITY, KEEPS, BlockRetention
from kvtwin.engine.trtllm.settings import TrtllmSettings


class CachedSequence:
    """What a request holds: its tokens' marks and its blocks, in order.

    Each block has one reference of the sequence. ``blocks`` cover ``tokens_per_block`` tokens each.
    """

    __slots__ = ("blocks", "marks")

    def __init__(self, marks: TokenMarks) -> None:
        self.marks = marks
        self.blocks: list[Block] = []


class Match(NamedTuple):
    """A block that a lookup found."""

    block: Block
    num_tokens: int
    """Leading tokens of it that are wanted."""
    is_partial: bool
    """Whether the block cannot be shared as it is: it has other tokens behind these, or room."""


class Lookup(NamedTuple):
    """What is cached of a prompt, and where it ends."""

    matches: list[Match]
    parent: Block
    """The last block that is shared as it is; the root if none is."""
    missing: Edge
    """The first full block behind it that is not cached; empty where the prompt has none."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are found."""
        return sum(match.num_tokens for match in self.matches)

    @property
    def num_device_tokens(self) -> int:
        """Those before the first that is in the host."""
        on_device = takewhile(lambda match: match.block.on_device, self.matches)
        return sum(match.num_tokens for match in on_device)


class Added(NamedTuple):
    """What a new sequence found."""

    num_hit_tokens: int
    num_host_tokens: int
    """Of these, in blocks that had to come from the host."""


class BlockManager:
    """Device and host blocks, the radix tree over both, and who holds what. It is the pool that watchers see.

    A free block stays in the tree until it is handed out, which takes its descendants out of the tree too. All that a
    prompt hits is held before anything is handed out for it, so it cannot lose what it found.

    Invariants (checked by :mod:`kvtwin.engine.trtllm.invariants`): a block's references are the sequences that hold it;
    it is in the queue of its memory exactly when it has none; sequences hold device blocks only; a child never outlives
    its parent; each slot of each memory belongs to one block.
    """

    def __init__(
        self,
        num_blocks: int,
        tokens_per_block: int,
        profile: TrtllmSettings,
        keys: KeySpace,
        *,
        logs_events: bool = False,
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.num_usable_blocks = num_blocks
        self.num_host_blocks = profile.num_host_blocks
        self.num_evictions = 0
        self.num_saved_blocks = self.num_loaded_blocks = 0
        self.listeners: list[PoolListener] = []
        self.now_ns = 0
        """Whoever has a clock sets it."""
        self.reuses = True
        self._profile = profile
        self._keys = keys
        device = [Block(number, on_device=True) for number in range(num_blocks)]
        host = [Block(num_blocks + number, on_device=False) for number in range(profile.num_host_blocks)]
        self.blocks = device + host
        """All there are, by id."""
        self.device_queues, self.host_queues = EvictionQueues(device), EvictionQueues(host)
        self.roots: dict[Hashable, Block] = {}
        """One tree per namespace of contents (LoRA adapter, cache salt)."""
        self.log = EventLog() if logs_events else NoEvents()
        self.log.created(num_blocks, profile.num_host_blocks)
        self._copies: list[BlockCopy] = []
        self._saves: list[HostCopy] = []
        self._loads: list[HostCopy] = []

    @property
    def pool(self) -> BlockManager:
        """Itself: the manager is the pool that watchers see."""
        return self

    swap = None
    """Paused requests keep nothing apart."""

    @property
    def offload(self) -> BlockManager | None:
        """Itself where there is host memory: what was copied there and back is counted here."""
        return self if self.num_host_blocks else None

    @property
    def num_blocks(self) -> int:
        """Host blocks, as whoever asks ``offload`` means it."""
        return self.num_host_blocks

    @property
    def events(self) -> EventLog | None:
        """The events since they were last taken; None where nobody asked for them."""
        return self.log if isinstance(self.log, EventLog) else None

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """Leading tokens of ``request`` that are cached, on the device or in the host."""
        num_tokens = request.num_tokens if max_tokens is None else max_tokens + 1
        return self.lookup(TokenMarks(self._keys, request.content), num_tokens).num_tokens

    @property
    def num_free_blocks(self) -> int:
        """Device blocks that no sequence holds."""
        return self.device_queues.num_free

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.tokens_per_block)

    def refresh(self) -> None:
        """Let the priorities expire whose time is over."""
        for queues in (self.device_queues, self.host_queues):
            for block, before in queues.refresh(self.now_ns):
                if block.edge and before != block.priority:
                    self.log.reprioritised(block, before)

    # ---------------------------------------------------------------- sequences

    def new_sequence(self, marks: TokenMarks) -> CachedSequence:
        """A sequence that holds nothing yet."""
        return CachedSequence(marks)

    def lookup(self, marks: TokenMarks, num_tokens: int) -> Lookup:
        """What is cached of a prompt of ``num_tokens``, short of its last token."""
        node = self._root(marks.namespace)
        matches: list[Match] = []
        if not self.reuses:
            return Lookup(matches, node, b"")
        size = self.tokens_per_block
        for edge in marks.edges(num_tokens - 1, size, partial=True):
            match = self._match(node, edge)
            if match:
                matches.append(match)
            if match is None or match.is_partial:
                return Lookup(matches, node, edge if len(edge) == size * TOKEN_BYTES else b"")
            node = match.block
        return Lookup(matches, node, b"")

    def add_sequence(
        self, sequence: CachedSequence, num_tokens: int, retentions: Sequence[BlockRetention] = ()
    ) -> Added:
        """Give ``sequence`` blocks for a prompt of ``num_tokens``, cached ones first; enough are free."""
        matches = self.lookup(sequence.marks, num_tokens).matches
        num_host_tokens = sum(match.num_tokens for match in matches if not match.block.on_device)
        wanted = [*retentions, *[KEEPS] * (self.num_blocks_for(num_tokens) - len(retentions))]
        source = None
        for match, retention in zip(matches, wanted, strict=False):
            block = match.block
            if match.is_partial and (block.refs or block.children):
                source = block
                break
            if match.is_partial:
                self._leave_tree(block)
            self._claim(block, retention)
            self._hold(sequence, block, is_hit=True)
        for block in sequence.blocks:
            if not block.on_device:
                self._onboard(block, avoid=source)
        if source:
            self._hold(sequence, self._copy(source), is_hit=True)
        for retention in wanted[len(sequence.blocks) :]:
            self._hold(sequence, self._take_free(retention), is_hit=False)
        return Added(sum(match.num_tokens for match in matches), num_host_tokens)

    def extend(self, sequence: CachedSequence, num_tokens: int, retention: BlockRetention) -> list[Block]:
        """Give ``sequence`` blocks for ``num_tokens`` in all; the new ones."""
        first = len(sequence.blocks)
        while len(sequence.blocks) < self.num_blocks_for(num_tokens):
            self._hold(sequence, self._take_free(retention), is_hit=False)
        return sequence.blocks[first:]

    def store(self, sequence: CachedSequence, num_tokens: int, *, partial: bool) -> None:
        """Let others find the first ``num_tokens`` tokens of ``sequence`` but the last, which is not computed yet.

        With ``partial`` also those in a last block that is not full. Where a block is in the tree already, that one
        stays, and what follows hangs behind it.
        """
        if not self.reuses or num_tokens < 2:
            return
        node = first = self._root(sequence.marks.namespace)
        added: list[Block] = []
        edges = sequence.marks.edges(num_tokens - 1, self.tokens_per_block, partial=partial)
        for block, edge in zip(sequence.blocks, edges, strict=False):
            found = node.child(edge)
            if found is None:
                if block.edge:  # shorter when it was stored before
                    self._leave_tree(block)
                if not added:
                    first = node
                node.attach(block, edge)
                added.append(block)
                for listener in self.listeners:
                    listener.registered([block.block_id], [0], None)
                found = block
            elif added:
                self.log.stored(first, added)
                added = []
            node = found
        if added:
            self.log.stored(first, added)

    def release(self, sequence: CachedSequence) -> None:
        """Let go of all blocks, the last first."""
        for block in reversed(sequence.blocks):
            self._let_go(block)
        for listener in self.listeners:
            listener.freed([block.block_id for block in reversed(sequence.blocks)])
        sequence.blocks = []

    def release_last(self, sequence: CachedSequence) -> None:
        """Let go of the last block, which is handed out next: its tokens were taken back."""
        block = sequence.blocks.pop()
        self._let_go(block, to_front=True)

    def take_copies(self) -> tuple[list[BlockCopy], list[HostCopy], list[HostCopy]]:
        """Copies within the device, to the host and from it that became necessary since the last call."""
        copies = self._copies, self._saves, self._loads
        self._copies, self._saves, self._loads = [], [], []
        return copies

    # ---------------------------------------------------------------- the tree

    def _root(self, namespace: Hashable) -> Block:
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Block(-1 - len(self.roots), on_device=True)
        return root

    def _match(self, node: Block, edge: Edge) -> Match | None:
        if len(edge) == self.tokens_per_block * TOKEN_BYTES and (child := node.child(edge)):
            return Match(child, self.tokens_per_block, False)
        if not self._profile.enable_partial_reuse:
            return None
        best, most = None, 0
        for each in node.children_like(edge):
            shared = num_common_tokens(each.edge, edge)
            if shared > most and self._may_be_partial(each):
                best, most = each, shared
        return Match(best, most, True) if best else None

    def _may_be_partial(self, block: Block) -> bool:
        return self._profile.copy_on_partial_reuse or not (block.refs or block.children)

    def _leave_tree(self, block: Block) -> None:
        """Take ``block`` and all below it out of the tree."""
        stack, order = [block], []
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(node.all_children())
        for node in reversed(order):
            if node.edge:
                self.log.removed(node)
                node.detach()

    # ---------------------------------------------------------------- blocks

    def _queues_of(self, block: Block) -> EvictionQueues:
        return self.device_queues if block.on_device else self.host_queues

    def _claim(self, block: Block, retention: BlockRetention) -> None:
        before = block.priority
        self._queues_of(block).claim(block, retention)
        if block.edge and block.priority != before:
            self.log.reprioritised(block, before)

    def _hold(self, sequence: CachedSequence, block: Block, *, is_hit: bool) -> None:
        block.refs += 1
        sequence.blocks.append(block)
        for listener in self.listeners:
            if is_hit:
                listener.touched([block.block_id])
            else:
                listener.taken([block.block_id])

    def _let_go(self, block: Block, *, to_front: bool = False) -> None:
        block.refs -= 1
        if not block.refs:
            self.device_queues.release(block, self.now_ns, to_front=to_front)

    def _copy(self, source: Block) -> Block:
        """A block with the tokens of ``source``, which is held or has children and stays where it is.

        Where nothing else is free it is ``source`` itself, which leaves the tree.
        """
        copy = self._take_free(BlockRetention(source.priority, None), avoid=source)
        if copy is source:
            return copy
        if source.on_device:
            self._copies.append(BlockCopy(0, source.slot, copy.slot))
        else:
            self._loads.append(HostCopy(copy.slot, source.slot))
            self.num_loaded_blocks += 1
        return copy

    def _take_free(self, retention: BlockRetention, avoid: Block | None = None) -> Block:
        """Hand out the next free device block: what it held goes to the host if it is worth it, or is lost.

        ``avoid`` is the last to be handed out, in either memory. Outside all ranges a block has the default priority.
        """
        block = self.device_queues.front(avoid)
        is_worth_it = block.edge and block.priority >= self._profile.secondary_offload_min_priority
        if is_worth_it and self.host_queues.num_free and self._profile.onboard_blocks:
            block = self._offload(block, avoid)
        elif block.edge:
            self.num_evictions += 1
            for listener in self.listeners:
                listener.evicted(block.block_id, 0)
        if block.edge:
            self._leave_tree(block)
        priority = DEFAULT_PRIORITY if retention.priority is None else retention.priority
        self.device_queues.claim(block, BlockRetention(priority, retention.duration_ns))
        return block

    def _offload(self, victim: Block, avoid: Block | None) -> Block:
        """Swap the slots of ``victim`` and of the least valuable host block, which is the device's next then."""
        other = self.host_queues.front(avoid)
        if other.edge:
            self.num_evictions += 1
            self._leave_tree(other)
        self._saves.append(HostCopy(victim.slot, other.slot))
        self.num_saved_blocks += 1
        self._swap(victim, other)
        return other

    def _onboard(self, block: Block, avoid: Block | None) -> None:
        """Bring ``block``, which is held, to the device."""
        other = self._take_free(KEEPS, avoid)
        self._loads.append(HostCopy(other.slot, block.slot))
        self.num_loaded_blocks += 1
        block.on_device, other.on_device = True, False
        block.slot, other.slot = other.slot, block.slot
        self.host_queues.release(other, self.now_ns)
        if block.edge:
            self.log.moved(block)

    def _swap(self, victim: Block, other: Block) -> None:
        """Two free blocks change places: each is queued again, at the end, where it is now."""
        duration_ns, expiry = victim.duration_ns, victim.expiry
        self.device_queues.claim(victim)
        self.host_queues.claim(other)
        victim.on_device, other.on_device = False, True
        victim.slot, other.slot = other.slot, victim.slot
        victim.duration_ns = duration_ns
        self.host_queues.release(victim, self.now_ns if expiry is None else expiry[0] - (duration_ns or 0))
        self.device_queues.release(other, self.now_ns)
        if victim.edge:
            self.log.moved(victim)
