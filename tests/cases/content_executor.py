"""An executor that moves contents: what each block of the device and of the host really holds, token by token.

Every token of a request writes a value that stands for the whole prefix before it, and every step checks that what its
requests look at is exactly their own prefix. The next token follows from the prefix alone, so that outputs do not
depend on what happened in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request

STATE = -1
"""The slot of a block that holds a state, which is all that such a block holds."""

NUM_TOKENS = 5
"""Size of the vocabulary."""


class ContentError(AssertionError):
    """A request looked at a slot that does not hold its prefix."""


class Prefix:
    """Tokens and a value for each of them that stands for all tokens up to it. Equal prefixes have equal values."""

    def __init__(self, root: int, tokens: list[int], sample: int = 0) -> None:
        """Prefixes of different ``root`` share nothing; samples of one prompt go on differently."""
        self._sample = sample
        self.tokens: list[int] = []
        self.values = [root]
        for token in tokens:
            self._append(token)

    def sample(self) -> int:
        """Append the token that follows, and return it."""
        token = (self.values[-1] + self._sample) % NUM_TOKENS
        self._append(token)
        return token

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self.values.append(hash((self.values[-1], token)))


class _Span(NamedTuple):
    """The positions that a request computes in a step."""

    request: Request
    start: int
    end: int
    """Behind the last token that is right."""
    stop: int
    """Behind the last draft that turns out to be wrong."""
    accepted: list[int]
    """Drafts that are right."""


class ContentExecutor:
    """Runs steps when they are submitted, in the order that :class:`~kvtwin.engine.executor.Step` asks for.

    ``order`` names the phases; another one is a fault, to see that it is noticed.
    """

    def __init__(
        self, config: EngineConfig, order: tuple[str, ...] = ("save", "load", "copy", "write", "read")
    ) -> None:
        self._specs = config.group_specs
        self._order = order
        self._device: dict[int, dict[int, object]] = {}
        self._host: dict[int, dict[int, object]] = {}
        self._origins: dict[Request, tuple[int, int]] = {}
        """Root and sample of each request."""
        self._prefixes: dict[Request, Prefix] = {}
        self._tables: dict[Request, list[list[int]]] = {}
        self._weights = 0
        self.num_copies = 0
        """Blocks copied within the device."""
        self._spans: list[_Span] = []
        self._rejected: dict[int, dict[Request, int]] = {}
        """Of each step whose output was not processed yet, its rejected drafts."""
        self._rng = random.Random(0)

    def expect(self, request: Request, root: int, sample: int = 0) -> None:
        """Tell what the prefix of ``request`` starts from, and which sample of its prompt it is.

        Requests with different salts share nothing.
        """
        self._origins[request] = root, sample

    def change_weights(self) -> None:
        """What was written so far is stale."""
        self._weights += 1

    def submit(self, step: Step) -> list[list[int]]:
        """Run ``step``; its output tokens. ContentError: a request would read what is not its prefix."""
        for admission in step.admitted:
            request = admission.request
            for past in self._rejected.values():
                past.pop(request, None)
            known_tokens = request.content.token_ids(0, request.num_tokens)
            root, sample = self._origins[request]
            self._prefixes[request] = Prefix(root, known_tokens, sample)
            self._tables[request] = [list(table) for table in admission.block_tables]
        for request, new_blocks in step.new_blocks:
            for table, blocks in zip(self._tables[request], new_blocks, strict=True):
                table += blocks
        for request, index, position, block in step.replaced_blocks:
            self._tables[request][index][position] = block
        self._spans = [self._span(step, index) for index in range(len(step.requests))]
        for phase in self._order:
            getattr(self, f"_{phase}")(step)
        self._rejected[step.index] = {span.request: span.stop - span.end for span in self._spans}
        return [
            [*span.accepted, self._prefixes[span.request].sample()] if samples else []
            for span, samples in zip(self._spans, step.samples, strict=True)
        ]

    def settle(self, step: Step) -> None:
        """The scheduler knows now which drafts of ``step`` were rejected, and has taken them back."""
        del self._rejected[step.index]

    def _span(self, step: Step, index: int) -> _Span:
        """What request number ``index`` of ``step`` computes: less far on than scheduled, if drafts were rejected."""
        request, num_drafts = step.requests[index], step.num_drafts.get(step.requests[index], 0)
        start = step.num_computed_tokens[index] - sum(past.get(request, 0) for past in self._rejected.values())
        stop = start + step.num_tokens[index]
        is_padded = any(admission.request is request for admission in step.admitted)
        prefix = self._prefixes[request]
        if step.samples[index]:
            assert stop - num_drafts == len(prefix.tokens)
        accepted = [] if is_padded else [prefix.sample() for _ in range(self._rng.randint(0, num_drafts))]
        return _Span(request, start, stop - num_drafts + len(accepted), stop, accepted)

    def _save(self, step: Step) -> None:
        for copy in step.saves:
            self._host[copy.host_block] = dict(self._device.get(copy.device_block, {}))

    def _load(self, step: Step) -> None:
        for copy in step.loads:
            self._device[copy.device_block] = dict(self._host.get(copy.host_block, {}))

    def _copy(self, step: Step) -> None:
        for copy in step.copies:
            self._device[copy.destination] = dict(self._device.get(copy.source, {}))
            self.num_copies += 1

    def _write(self, step: Step) -> None:
        forks = {admission.request for admission in step.admitted if admission.is_fork}
        for request, start, end, stop, _ in self._spans:
            if request in forks:
                continue
            for index, spec, table in self._groups(request):
                if spec.kind == "mamba":
                    continue
                for position in range(start, stop):
                    block, slot = table[position // spec.block_size], position % spec.block_size
                    assert block != NULL_BLOCK
                    content = self._device.setdefault(block, {})
                    content.pop(STATE, None)
                    content[slot] = self._value(request, index, position) if position < end else "rejected"
        self._move_states(step)

    def _move_states(self, step: Step) -> None:
        """Go on from the states of the tokens before the step to those of its last tokens."""
        moves = [
            (request, start, end, index, spec.block_size, table)
            for request, start, end, _, _ in self._spans
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
        for request, start, end, _, _ in self._spans:
            for index, spec, table in self._groups(request):
                if spec.kind == "mamba":
                    continue
                size, values, device = spec.block_size, self._prefixes[request].values, self._device
                for position in range(_first_visible(spec, start), end):
                    block, slot = table[position // size], position % size
                    # The value of `_value`, written out: this is where these tests spend their time.
                    if device.get(block, {}).get(slot) != (self._weights, index, values[position + 1]):
                        raise ContentError(f"step {step.index}: {request} reads {block}[{slot}] for token {position}")

    def _groups(self, request: Request) -> Iterator[tuple[int, CacheGroupSpec, list[int]]]:
        for index, (spec, table) in enumerate(zip(self._specs, self._tables[request], strict=True)):
            yield index, spec, table

    def _value(self, request: Request, group_index: int, position: int) -> object:
        return self._weights, group_index, self._prefixes[request].values[position + 1]


def _first_visible(spec, position: int) -> int:
    """The first token that the query at ``position`` looks at."""
    if spec.kind == "sliding_window":
        return max(0, position - spec.window_tokens + 1)
    if spec.kind == "chunked_local_attention":
        return position // spec.window_tokens * spec.window_tokens
    return 0
