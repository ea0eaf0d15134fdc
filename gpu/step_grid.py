"""Which steps are measured to calibrate a step-time model: batches, contexts and chunks from small to what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.cuda_graphs import BATCH_SIZES


class PlannedSequence(NamedTuple):
    """What a request has computed, and computes in the step."""

    num_computed_tokens: int
    num_tokens: int
    is_decoding: bool
    """Whether the step's only token is an output token, not one of the prompt."""
    samples: bool = True

    @property
    def context_tokens(self) -> int:
        """Tokens in the cache when the step is done."""
        return self.num_computed_tokens + self.num_tokens


PlannedStep = tuple[PlannedSequence, ...]


def num_blocks_of(step: PlannedStep, block_size: int) -> int:
    """Blocks that the sequences hold when no two share one."""
    return sum(-(-sequence.context_tokens // block_size) for sequence in step)


def step_grid(config: EngineConfig, num_levels: int) -> list[PlannedStep]:
    """Steps that ``config`` allows, each once: the more levels, the finer.

    They only decode: in batches of ``BATCH_SIZES`` and of all seats, with contexts of one length; and in those
    between, which a device may fill up, with contexts of many. Or they compute chunks of one prompt behind what it has
    computed, of several prompts, and of one beside sequences that decode. Chunks behind others deliver no token, as if
    their prompts went on.
    """
    grid = _Grid(config, num_levels)
    steps = (*grid.decodes(), *grid.chunks(), *grid.prompts(), *grid.mixed())
    return list(dict.fromkeys(step for step in steps if grid.fits(step)))


class _Grid:
    def __init__(self, config: EngineConfig, num_levels: int) -> None:
        self._config = config
        self._num_levels = num_levels
        self._seats = config.max_running_requests
        self._chunks = _levels(1, min(config.token_budget, self._longest(1)), 2 * num_levels)

    def fits(self, step: PlannedStep) -> bool:
        """Whether the scheduler could decide on ``step``."""
        config = self._config
        return (
            0 < len(step) <= self._seats
            and sum(sequence.num_tokens for sequence in step) <= config.token_budget
            and max(sequence.context_tokens for sequence in step) < config.max_model_len
            and min(sequence.num_computed_tokens + sequence.num_tokens - sequence.is_decoding for sequence in step) > 0
            and num_blocks_of(step, config.block_size) < config.num_blocks
        )

    def decodes(self) -> Iterator[PlannedStep]:
        previous = 0
        for size in sorted({*(size for size in BATCH_SIZES if size < self._seats), self._seats}):
            for context_tokens in _levels(2, self._longest(size), self._num_levels):
                yield (_decoding(context_tokens),) * size
            fewer, previous = (previous + size + 1) // 2, size
            longest = self._longest(fewer)
            yield tuple(_decoding(max(2, longest * (index + 1) // fewer)) for index in range(fewer))

    def chunks(self) -> Iterator[PlannedStep]:
        for tokens in self._chunks:
            for before in _levels(0, self._longest(1) - tokens, 3):
                yield (PlannedSequence(before, tokens, False, samples=before == 0),)

    def prompts(self) -> Iterator[PlannedStep]:
        for tokens in self._chunks:
            for count in (2, 8):
                yield (PlannedSequence(0, tokens // count, False),) * count

    def mixed(self) -> Iterator[PlannedStep]:
        for tokens in self._chunks:
            for size in _levels(1, min(self._seats - 1, self._config.token_budget - tokens), 3):
                context_tokens = max(2, self._longest(size, tokens) // 4)
                yield ((_decoding(context_tokens),) * size) + (PlannedSequence(0, tokens, False),)

    def _longest(self, num_sequences: int, other_tokens: int = 0) -> int:
        """The longest context that so many sequences can have at once, beside another of ``other_tokens``."""
        config = self._config
        num_blocks = config.num_blocks - 1 - -(-other_tokens // config.block_size)
        return min(config.max_model_len - 1, num_blocks // num_sequences * config.block_size)


def _decoding(context_tokens: int) -> PlannedSequence:
    return PlannedSequence(context_tokens - 1, 1, True)


def _levels(least: int, most: int, count: int) -> list[int]:
    """``count`` sizes or fewer from ``least`` to ``most``, each about the same factor above the one before."""
    if most <= least:
        return [least] if most == least else []
    ratio = (most + 1) / (least + 1)
    return sorted({round((least + 1) * ratio ** (index / (count - 1))) - 1 for index in range(count)})
