"""An executor that moves contents: what each block of the device and of the host really holds, token by token.

Every token of a request writes a value that stands for the whole prefix before it, and every step checks that what its
requests look at is exactly their own prefix. The next token follows from the prefix alone, so that outputs do not
depend on what happened in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.block_pool import NULL_BLOCK
from engine.cache_group_spec import CacheGroupSpec
from engine.config import EngineConfig
from engine.executor import Step
from engine.request import Request

STATE = -1
"""The slot of a block that holds a state, which is all that such a block holds."""

NUM_TOKENS = 5
"""Size of the vocabulary."""


class ContentError(AssertionError):
    """A request looked at a slot that does not hold its prefix."""


class Prefix:
    """Tokens and a value for each of them that stands for all tokens up to it. Equal prefixes have equal values."""

    def __init__(self, root: int, tokens: list[int]) -> None:
        """Prefixes of different ``root`` share nothing."""
        self.tokens: list[int] = []
        self.values = [root]
        for token in tokens:
            self._append(token)

    def sample(self) -> int:
        """Append the token that follows, and return it."""
        token = self.values[-1] % NUM_TOKENS
        self._append(token)
        return token

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self.values.append(hash((self.values[-1], token)))


class ContentExecutor:
    """Runs steps when they are submitted, in the order that :class:`~engine.executor.Step` asks for.

    ``order`` names the phases; another one is a fault, to see that it is noticed.
    """

    def __init__(
        self, config: EngineConfig, order: tuple[str, ...] = ("save", "load", "copy", "write", "read")
    ) -> None:
        self._specs = config.group_specs
        self._order = order
        self._device: dict[int, dict[int, object]] = {}
        self._host: dict[int, dict[int, object]] = {}
        self._roots: dict[Request, int] = {}
        self._prefixes: dict[Request, Prefix] = {}
        self._tables: dict[Request, list[list[int]]] = {}
        self._weights = 0

    def expect(self, request: Request, root: int) -> None:
        """Tell what the prefix of ``request`` starts from: requests with different salts share nothing."""
        self._roots[request] = root

    def change_weights(self) -> None:
        """What was written so far is stale."""
        self._weights += 1

    def submit(self, step: Step) -> list[list[int]]:
        """Run ``step``; its output tokens. ContentError: a request would read what is not its prefix."""
        for admission in step.admitted:
            request = admission.request
            known_tokens = request.content.token_ids(0, request.num_tokens)
            self._prefixes[request] = Prefix(self._roots[request], known_tokens)
            self._tables[request] = [list(table) for table in admission.block_tables]
        for request, new_blocks in step.new_blocks:
            for table, blocks in zip(self._tables[request], new_blocks, strict=True):
                table += blocks
        for phase in self._order:
            getattr(self, f"_{phase}")(step)
        return [
            [self._prefixes[request].sample()] if samples else []
            for request, samples in zip(step.requests, step.samples, strict=True)
        ]

    def _save(self, step: Step) -> None:
        for copy in step.saves:
            self._host[copy.host_block] = dict(self._device.get(copy.device_block, {}))

    def _load(self, step: Step) -> None:
        for copy in step.loads:
            self._device[copy.device_block] = dict(self._host.get(copy.host_block, {}))

    def _copy(self, step: Step) -> None:
        for copy in step.copies:
            self._device[copy.destination] = dict(self._device.get(copy.source, {}))

    def _write(self, step: Step) -> None:
        for request, start, end in _spans(step):
            for index, spec, table in self._groups(request):
                if spec.kind == "mamba":
                    continue
                for position in range(start, end):
                    block, slot = table[position // spec.block_size], position % spec.block_size
                    assert block != NULL_BLOCK
                    content = self._device.setdefault(block, {})
                    content.pop(STATE, None)
                    content[slot] = self._value(request, index, position)
        self._move_states(step)

    def _move_states(self, step: Step) -> None:
        """Go on from the states of the tokens before the step to those of its last tokens."""
        moves = [
            (request, start, end, index, spec.block_size, table)
            for request, start, end in _spans(step)
            for index, spec, table in self._groups(request)
            if spec.kind == "mamba"
        ]
        for request, start, _, index, block_size, table in moves:
            if start:
                block = table[(start - 1) // block_size]
                if self._device.get(block, {}).get(STATE) != self._value(request, index, start - 1):
                    raise ContentError(f"step {step.index}: {request} goes on from {block}, not its state")
        for request, _, end, index, block_size, table in moves:
            block = table[(end - 1) // block_size]
            assert block != NULL_BLOCK
            self._device[block] = {STATE: self._value(request, index, end - 1)}

    def _read(self, step: Step) -> None:
        for request, start, end in _spans(step):
            for index, spec, table in self._groups(request):
                if spec.kind == "mamba":
                    continue
                for position in range(_first_visible(spec, start), end):
                    block, slot = table[position // spec.block_size], position % spec.block_size
                    if self._device.get(block, {}).get(slot) != self._value(request, index, position):
                        raise ContentError(f"step {step.index}: {request} reads {block}[{slot}] for token {position}")

    def _groups(self, request: Request) -> Iterator[tuple[int, CacheGroupSpec, list[int]]]:
        for index, (spec, table) in enumerate(zip(self._specs, self._tables[request], strict=True)):
            yield index, spec, table

    def _value(self, request: Request, group_index: int, position: int) -> object:
        return self._weights, group_index, self._prefixes[request].values[position + 1]


def _spans(step: Step) -> Iterator[tuple[Request, int, int]]:
    for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
        yield request, start, start + num_tokens


def _first_visible(spec, position: int) -> int:
    """The first token that the query at ``position`` looks at."""
    if spec.kind == "sliding_window":
        return max(0, position - spec.window_tokens + 1)
    if spec.kind == "chunked_local_attention":
        return position // spec.window_tokens * spec.window_tokens
    return 0
