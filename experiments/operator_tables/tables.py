"""Tables of a step's parts, made of an operator's times at the sizes of a grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvtwin.experiments.operator_tables.aiconfigurator import OperatorTimes
from kvtwin.sim.tabulated import Curve, StepTables, Surface, rising, rising_both_ways

MOST_TOKENS = 16_384
"""Largest step of the tables; above, the last slope goes on."""

MOST_SEQUENCES = 1024
MOST_CONTEXT = 131_072
"""Of one sequence."""

_GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""vLLM pads a step to these sizes, those of its CUDA graphs, up to 512 tokens."""

_SHORTEST = 64
"""Tokens of a prompt, or of its chunk, below which attention takes no less for the same number of tokens."""

_TILE = 128
"""Matrix products jump where their tokens need another tile of this size, or a multiple of it."""


def step_tables(times: OperatorTimes) -> StepTables:
    """All four tables. Measured times fall here and there when a size grows; the tables do not."""
    tiles = [size for edge in range(1024, MOST_TOKENS + 1, _TILE) for size in (edge, edge + 1)]
    floor = _KeysFromMemory.of(times)
    sampled_sizes = [1, *range(8, 257, 8), *range(272, MOST_SEQUENCES + 1, 16)]
    return StepTables(
        tokens=_curve([*range(1, 1024), *tiles], lambda tokens: times.tokens_ns(_padded(tokens))),
        sampled=_curve(sampled_sizes, times.sampled_ns),
        decode=_surface(
            _powers(2**0.25, MOST_SEQUENCES),
            _powers(2**0.25, MOST_CONTEXT),
            lambda *sizes: max(times.decode_ns(*sizes), floor.decode_ns(*sizes)),
        ),
        prefill=_surface(
            _powers(2**0.25, MOST_TOKENS), _powers(2**0.25, MOST_CONTEXT), lambda *sizes: _prefill(times, *sizes)
        ),
    )


def _curve(sizes: Sequence[int], time_ns: Callable[[int], float]) -> Curve:
    return Curve(sizes, [round(time) for time in rising([time_ns(size) for size in sizes])])


def _surface(rows: Sequence[int], columns: Sequence[int], time_ns: Callable[[int, int], float]) -> Surface:
    times = rising_both_ways([[time_ns(row, column) for column in columns] for row in rows])
    return Surface(rows, columns, [[round(time) for time in row] for row in times])


def _powers(base: float, last: int) -> list[int]:
    """Whole numbers from 1 to ``last``, each about ``base`` times the one before."""
    sizes, size = [], 1.0
    while size < last:
        sizes.append(round(size))
        size *= base
    return sorted({*sizes, last})


def _padded(tokens: int) -> int:
    return next((size for size in _GRAPH_SIZES if size >= tokens), tokens)


class _KeysFromMemory(NamedTuple):
    """The least that attention of decoding sequences takes where it reads keys from memory, as fast as large batches.

    The kernels were measured on the same keys again and again, which a GPU's second-level cache holds up to its size
    (50 to 128 MB). A server's layers take turns, and find none of theirs there. LLMServingSim measured 1.4 times the
    time for 8 to 32 sequences of 1,000 tokens on an RTX PRO 6000, and the same for 128.
    """

    least_ns: float
    token_ns: float

    @classmethod
    def of(cls, times: OperatorTimes) -> _KeysFromMemory:
        least_ns = times.decode_ns(1, 1)
        sequences, context = _LARGE
        return cls(least_ns, (times.decode_ns(sequences, context) - least_ns) / (sequences * context))

    def decode_ns(self, sequences: int, context: int) -> float:
        """Of sequences that decode, each after ``context`` tokens."""
        return self.least_ns + self.token_ns * sequences * context


_LARGE = 128, 8192
"""Sequences and the context of each, whose keys no cache holds: 4 GB in a model with 4 KB per token and layer."""


def _prefill(times: OperatorTimes, tokens: int, keys: int) -> float:
    """Of prompts with ``tokens`` tokens in the step, each of which sees ``keys`` tokens in the mean.

    More than one prompt would see of its own tokens mean tokens before it; fewer mean that there are several prompts.
    """
    alone = (tokens + 1) / 2
    if keys >= alone:
        return times.prefill_ns(1, tokens, round(keys - alone))
    prompts = max(tokens / max(2 * keys - 1, _SHORTEST), 1)
    few = int(prompts)
    below, above = (times.prefill_ns(count, max(round(tokens / count), 1), 0) for count in (few, few + 1))
    return below + (prompts - few) * (above - below)
