"""State-space layers ("mamba")."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_pool import NULL_BLOCK, BlockPool
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, Span, find_in_all
from kvtwin.engine.prefill_checkpoints import PrefillCheckpoints, prefill_end
from kvtwin.engine.request import BlockTables, Request
from kvtwin.engine.settings import EngineSettings


class StateSpaceGroup(CacheGroup):
    """Layers that sum up all earlier tokens in one state, which fills a block.

    The block at position ``i`` of a table holds the state after the last token computed so far of those that the
    position stands for; only the newest state and the one that it goes on from are kept, all other positions hold the
    null block (vLLM's mode "align"). A hit needs only the state at its end.

    With speculation the newest state is followed by one scratch block for each draft; they move on with it. A chunk
    that leaves a checkpoint writes it to the position before the newest state's.

    An executor needs no list of copies: a step that computes tokens ``start`` to ``end`` of a request reads the state
    at position ``(start - 1) // block_size`` of its table (none if ``start`` is 0) and writes that at
    ``(end - 1) // block_size``. Both hold blocks when the step is decided, and as steps run in order, whoever is given
    a block that was let go writes it later.
    """

    forgets = True

    def __init__(self, spec: CacheGroupSpec, settings: EngineSettings) -> None:
        super().__init__(spec, settings)
        self._num_scratch_blocks = spec.num_speculative_blocks
        self._num_checkpoint_blocks = spec.num_prefill_checkpoint_blocks
        self._positions = PrefillCheckpoints(settings)
        self.margin_tokens = 0  # a drafter has no states
        self.unwritten: set[int] = set()
        """Keys given in the step being decided, which cannot be hit before the next, not even in an older block."""
        self.checkpoints: dict[Request, tuple[int, int]] = {}
        """Where the chunk last scheduled leaves a checkpoint: after how many tokens, and its position in the table."""

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        key_tokens = self.alignment_tokens if self.hits_parts else self.block_size
        stride = self.alignment_tokens // key_tokens
        num_keys = min(num_tokens // key_tokens, len(keys[0]))
        for end in range(num_keys // stride * stride, 0, -stride):
            states = find_in_all([group_keys[end - 1] for group_keys in keys], find)
            if states:
                num_before = -(-end * key_tokens // self.block_size) - 1
                return [[NULL_BLOCK] * num_before + [state] for state in states], end * key_tokens
        return [[] for _ in keys], 0

    def blocks_to_add(self, request: Request, span: Span, table: Sequence[int]) -> int:
        """As vLLM counts; negative where blocks taken for drafts are left over."""
        has_checkpoint = self._checkpoint(request, span, table) is not None
        most = 1 + has_checkpoint + span.is_admission * self._num_scratch_blocks
        return min(self._length(span) - len(table), most)

    def blocks_to_admit(self, request: Request, span: Span, table: Sequence[int]) -> int:
        return self.blocks_to_add(request, span, table)

    def add_blocks(self, request: Request, span: Span, table: list[int], pool: BlockPool) -> list[int]:
        checkpoint, num_held, length = self._checkpoint(request, span, table), len(table), self._length(span)
        self.checkpoints.pop(request, None)
        if checkpoint:
            self.checkpoints[request] = checkpoint
        elif length <= num_held:
            return []
        last_skipped = length - self._num_scratch_blocks - 1 - (checkpoint is not None)
        table += [NULL_BLOCK] * (last_skipped - num_held)
        if not span.is_admission:
            for position in range(num_held - self._num_scratch_blocks, min(num_held, last_skipped)):
                table.append(table[position])
                table[position] = NULL_BLOCK
        table += pool.allocate(max(0, length - len(table)))
        return table[num_held:]

    def num_slots(self, request: Request, table: Sequence[int]) -> int:
        is_settled = not self._num_scratch_blocks and request not in self.checkpoints
        return len(table) * self.block_size if is_settled else 0

    def let_go(self, request: Request) -> None:
        self.checkpoints.pop(request, None)

    def most_blocks(self, num_slots: int) -> int:
        """The newest state, per step in flight the one that it goes on from, and what is beside them."""
        num_states = 1 + self._settings.max_steps_in_flight + self._num_checkpoint_blocks
        return min(self._blocks_for(num_slots), num_states) + self._num_scratch_blocks

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - 1) // self.block_size

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        end = (index + 1) * self.block_size
        interval = self._settings.prefix_cache_retention_interval
        if interval is None or (interval and end % interval == 0):
            return True
        return any(end <= boundary < end + self.block_size for boundary in boundaries)

    def _length(self, span: Span) -> int:
        """Positions of a table after ``span``; slots that a drafter writes ahead need no state."""
        return self._blocks_for(span.end) + self._num_scratch_blocks

    def _checkpoint(self, request: Request, span: Span, table: Sequence[int]) -> tuple[int, int] | None:
        """Where the chunk ``span`` leaves a checkpoint: after how many tokens, and at which position of the table.

        Where only boundaries worth resending are cached, only the chunk that ends the prefill does.
        """
        is_sparse = self._settings.prefix_cache_retention_interval == 0
        if not self._num_checkpoint_blocks or (is_sparse and span.end < prefill_end(request)):
            return None
        tokens, position = self._positions.position(span.end, self.alignment_tokens), self._blocks_for(span.end) - 2
        alignment = self.spec.prefill_checkpoint_alignment
        if not self._positions.fits(span.start, span.end, tokens, self.block_size, alignment):
            return None
        is_scratch = not span.is_admission and position >= len(table) - self._num_scratch_blocks
        is_free = position >= len(table) or table[position] == NULL_BLOCK or is_scratch
        return (tokens, position) if is_free else None


class UncachedStateGroup(CacheGroup):
    """Such layers without prefix caching: a block stands for ``max_model_len`` tokens, so a request has one state.

    With speculation there is one block more for each draft (vLLM's mode "none").
    """

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        return [[] for _ in keys], 0

    def _blocks_for(self, num_tokens: int) -> int:
        return super()._blocks_for(num_tokens) + self.spec.num_speculative_blocks
