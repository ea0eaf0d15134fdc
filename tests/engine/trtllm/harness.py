"""Sequences on TensorRT-LLM's block manager, and requests on its scheduler, driven by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace, TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import Request
from kvtwin.engine.token_marks import TokenMarks
from kvtwin.engine.trtllm.block_manager import BlockManager, CachedSequence
from kvtwin.engine.trtllm.invariants import check_blocks
from kvtwin.engine.trtllm.profile import TrtllmProfile
from kvtwin.engine.trtllm.retention import RetentionConfig
from kvtwin.engine.trtllm.scheduler import TrtllmScheduler

MS = 10**6


class Cache:
    """A block manager whose state is checked after every operation."""

    def __init__(self, num_blocks: int, tokens_per_block: int = 4, *, logs_events: bool = False, **profile) -> None:
        self.keys = KeySpace(tokens_per_block)
        self.manager = BlockManager(
            num_blocks, tokens_per_block, TrtllmProfile(**profile), self.keys, logs_events=logs_events
        )
        self.live: dict[int, tuple[CachedSequence, TokenContent, int, RetentionConfig]] = {}
        self._next = 0

    def add(
        self, tokens: Sequence[int], retention: RetentionConfig | None = None, *, store: bool = True
    ) -> tuple[int, list[int], int]:
        """A prompt, which with ``store`` is computed and stored: its number, its table and its hit tokens."""
        retention = retention or RetentionConfig()
        content = TokenContent(self.keys, tokens)
        sequence = self.manager.new_sequence(TokenMarks(self.keys, content))
        wanted = retention.of_prompt(len(tokens), self.manager.tokens_per_block)
        added = self.manager.add_sequence(sequence, len(tokens), wanted)
        if store:
            self.manager.store(sequence, len(tokens), partial=False)
        number, self._next = self._next, self._next + 1
        self.live[number] = sequence, content, len(tokens), retention
        self.check()
        return number, [block.block_id for block in sequence.blocks], added.num_hit_tokens

    def generate(self, number: int, *tokens: int) -> list[int]:
        """Append output tokens; the blocks that came for them."""
        sequence, content, length, retention = self.live[number]
        new = []
        for token in tokens:
            content.append((token,))
            length += 1
            new += self.manager.extend(sequence, length, retention.decode)
        self.live[number] = sequence, content, length, retention
        self.check()
        return [block.block_id for block in new]

    def store_context(self, number: int) -> None:
        """The prompt is computed: its full blocks can be found."""
        sequence, _, length, _ = self.live[number]
        self.manager.store(sequence, length, partial=False)
        self.check()

    def end(self, number: int) -> None:
        """Store what the sequence computed, and let go of it."""
        sequence, _, length, _ = self.live.pop(number)
        self.manager.store(sequence, length, partial=True)
        self.manager.release(sequence)
        self.check()

    def check(self) -> None:
        holders = Counter(block for sequence, *_ in self.live.values() for block in sequence.blocks)
        check_blocks(self.manager, holders)


def scheduler(num_tokens: int, policy: str, most: int = 2, tokens_per_block: int = 10, **settings) -> TrtllmScheduler:
    """A scheduler without reuse over ``num_tokens`` tokens, as in TensorRT-LLM's capacity tests."""
    config = EngineConfig(
        num_blocks=num_tokens // tokens_per_block + 1,
        block_size=tokens_per_block,
        server=TrtllmProfile(capacity_scheduler_policy=policy, **settings),
        enable_prefix_caching=False,
        max_num_seqs=most,
        max_model_len=10_000,
        max_num_batched_tokens=100_000,
        async_scheduling=False,
    )
    made = config.server.make_scheduler(config, None)
    assert isinstance(made, TrtllmScheduler)
    return made


def request(made: TrtllmScheduler, name: str, prompt: int, output: int, priority: int = 0, drafts: int = 0) -> Request:
    """A request of known lengths."""
    one = Request(name, prompt, output, TokenContent(made.keys, [1] * prompt), priority=priority)
    one.num_drafts = drafts
    return one


def iterations(
    made: TrtllmScheduler, arrivals: dict[int, list[Request]]
) -> tuple[int, list[tuple[int, tuple[str, ...]]]]:
    """Run until all is done: how many steps, and the steps at which another set of requests was in one."""
    checker = made.config.server.make_checker(made)
    number, changes = 0, []
    for each in arrivals.get(0, ()):
        made.add_request(each)
    while made.live:
        step = made.schedule()
        checker.check_step(step)
        names = tuple(sorted(each.request_id for each in step.requests))
        if not changes or changes[-1][1] != names:
            changes.append((number, names))
        made.update(step, [[7] if samples else [] for samples in step.samples])
        checker.check()
        number += 1
        for each in arrivals.get(number, ()):
            made.add_request(each)
    return number, changes
