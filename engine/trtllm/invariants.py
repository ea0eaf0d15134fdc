"""Recomputes the state of TensorRT-LLM's blocks, tree, queues and requests from scratch."""

from __future__ import annotations

from collections import Counter

from kvtwin.engine.executor import Step
from kvtwin.engine.invariants import InvariantError
from kvtwin.engine.trtllm.block import TOKEN_BYTES, Block
from kvtwin.engine.trtllm.block_manager import BlockManager
from kvtwin.engine.trtllm.scheduler import TrtllmScheduler


def _require(condition: bool, message: str, *about: object) -> None:
    if not condition:
        raise InvariantError(message.format(*about))


def check_blocks(cache: BlockManager, holders: Counter[Block]) -> None:
    """Raise InvariantError unless tree, queues and references fit ``holders``: how many sequences hold each block."""
    queued: Counter[Block] = Counter()
    for queues, on_device in ((cache.device_queues, True), (cache.host_queues, False)):
        num_free = 0
        for priority, queue in queues.queues.items():
            _require(bool(queue), "an empty queue is kept")
            num_free += len(queue)
            for block in queue:
                queued[block] += 1
                _require(block.priority == priority, "{} is in the queue of priority {}", block, priority)
                _require(block.on_device == on_device, "{} is in the queue of the other memory", block)
        _require(num_free == queues.num_free, "free blocks are miscounted")
    in_tree: set[Block] = set()
    for root in cache.roots.values():
        stack = [root]
        while stack:
            node = stack.pop()
            for child in node.all_children():
                _require(child.parent is node and child not in in_tree, "{} hangs in two places", child)
                _require(node.child(child.edge) is child, "{} is not behind its edge", child)
                in_tree.add(child)
                stack.append(child)
    most_bytes = cache.tokens_per_block * TOKEN_BYTES
    for block in cache.blocks:
        _require(block.refs == holders[block], "{} has {} holders", block, holders[block])
        _require(queued[block] == (block.refs == 0), "{} is {} times in a queue", block, queued[block])
        _require(bool(block.edge) == (block in in_tree), "{} and its edge differ on the tree", block)
        _require(len(block.edge) <= most_bytes, "{} has too many tokens", block)
        _require(not block.children or bool(block.edge), "children of {} outlive it", block)
        _require(block.on_device or not block.refs, "{} is held and in the host", block)
    slots = sorted(block.slot for block in cache.blocks)
    _require(slots == list(range(len(cache.blocks))), "slots are lost")
    device_slots = [block.slot for block in cache.blocks if block.on_device]
    _require(max(device_slots, default=-1) < cache.num_usable_blocks == len(device_slots), "memories are mixed up")


class TrtllmChecker:
    """Checks a scheduler, its requests and its blocks."""

    def __init__(self, scheduler: TrtllmScheduler) -> None:
        self._scheduler = scheduler

    def check(self) -> None:
        """Raise InvariantError for the first contradiction."""
        scheduler = self._scheduler
        for requests in (scheduler.running, scheduler.waiting):
            places = [scheduler.order(request) for request in requests]
            _require(places == sorted(places), "requests are out of order")
        ids = [request.request_id for request in (*scheduler.running, *scheduler.waiting)]
        _require(len(ids) == len(set(ids)) and set(ids) == set(scheduler.live), "live requests and queues differ")
        _require(set(scheduler.sequences) == set(scheduler.running), "who runs and who holds blocks differ")
        _require(scheduler.in_context <= set(scheduler.running), "a prompt is computed for nobody")
        holders: Counter[Block] = Counter()
        for request, sequence in scheduler.sequences.items():
            holders.update(sequence.blocks)
            _require(request.block_tables == [[block.block_id for block in sequence.blocks]], "{}: table", request)
            covered = len(sequence.blocks) * scheduler.config.block_size
            _require(request.num_computed_tokens <= covered, "{} has tokens without blocks", request)
        check_blocks(scheduler.kv_cache, holders)

    def check_step(self, step: Step) -> None:
        """Raise InvariantError if the step breaks a limit."""
        config = self._scheduler.config
        _require(sum(step.num_tokens) == step.total_tokens, "the total of a step is wrong")
        _require(step.total_tokens <= config.max_num_batched_tokens, "a step is above --max-num-tokens")
        _require(len(step.requests) <= config.max_num_seqs, "a step is above --max-batch-size")
        _require(len(set(step.requests)) == len(step.requests), "a request is in a step twice")
        _require(all(num > 0 for num in step.num_tokens), "a request is in a step without a token")
