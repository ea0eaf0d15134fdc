"""What the engine asks an executor to run, and what it gets back.

One engine decides; an executor carries out: predicted by a step-time model, or really on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from kvtwin.engine.request import BlockTables, Request


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that starts, or starts again, in this step."""

    request: Request
    num_hit_tokens: int
    block_tables: BlockTables
    """Its whole tables, hit blocks first: a copy."""
    resumed: bool
    """Whether it ran before and was preempted."""
    swapped: bool = False
    """Whether it continues with what it had computed before: its hit is no lookup then."""
    num_external_tokens: int = 0
    """Of the hit tokens, those that only the offload tier had, or a connector."""
    is_fork: bool = False
    """Whether it shares the blocks of its parent, which hold its whole prompt (:mod:`kvtwin.engine.forking`).

    Its one token, the prompt's last, is computed for the output alone: its keys and values are there already and must
    not be written (slot -1).
    """


class BlockCopy(NamedTuple):
    """One block whose content is needed in another one: all layers of a cache group."""

    group_index: int
    source: int
    destination: int


class HostCopy(NamedTuple):
    """A device block and the host block that it is copied to or from: whatever its region of memory holds."""

    device_block: int
    host_block: int


class ReplacedBlock(NamedTuple):
    """An entry of a table that names another block from now on."""

    request: Request
    group_index: int
    position: int
    block: int


class AdmissionStop(Enum):
    """Why no more requests were admitted to a step."""

    NOBODY_WAITS = "no request is waiting"
    SEATS = "the maximum number of requests is running (--max-num-seqs)"
    BUDGET = "the token budget is used up"
    HELD = "prefill is held back"
    STATE = "no state is worth keeping within the tokens left"
    ENCODER = "the next image finds no room in the encoder cache, or no compute budget left in the step"
    LOOKAHEAD = "the step would end within the tokens that the drafter reads"
    MEMORY = "too few blocks are free"
    PREEMPTION = "a running request was preempted"


@dataclass(slots=True)
class Step:
    """One batch to run. The first three lists are parallel, in scheduling order.

    A step carries out ``saves``, then ``loads``, then ``copies``, each in order, and only then writes and reads. So a
    block that a preempted request lost can be handed out in the same step, and so can an evicted one: what it held
    before the step is in the host by then. Host blocks that a step reads are not written by it.

    Within a layer all KV writes of a step come before all its reads: requests admitted together may share blocks
    that the step itself fills. In async scheduling a request's input may be a placeholder: the output that an
    earlier, still running step will sample for it.
    """

    index: int
    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    """Tokens to compute."""
    num_computed_tokens: list[int] = field(default_factory=list)
    """Tokens computed before this step."""
    samples: list[bool] = field(default_factory=list)
    """Whether the step ends at the request's last token, so that it delivers an output token."""
    admitted: list[Admission] = field(default_factory=list)
    new_blocks: list[tuple[Request, BlockTables]] = field(default_factory=list)
    """Blocks added to tables of requests that ran before."""
    saves: list[HostCopy] = field(default_factory=list)
    """Device blocks to copy to the host."""
    loads: list[HostCopy] = field(default_factory=list)
    """Host blocks to copy to the device."""
    copies: list[BlockCopy] = field(default_factory=list)
    """Blocks to copy before the step writes anything, in order."""
    replaced_blocks: list[ReplacedBlock] = field(default_factory=list)
    """Entries of tables of requests that ran before: a fork that writes gets a copy of the block it shared."""
    preempted: list[Request] = field(default_factory=list)
    """Requests preempted since the last step: by resets of the prefix cache first, then while this one was decided."""
    finished: list[Request] = field(default_factory=list)
    """Requests that ended since the last step: their state can be dropped."""
    num_drafts: dict[Request, int] = field(default_factory=dict)
    """Speculative decoding: how many of a request's last tokens are drafts to verify; requests without are left out.
    Those of a request that the step admits are padding, which the executor rejects."""
    images: dict[Request, list[int]] = field(default_factory=dict)
    """Images to encode first, as positions in a request's ``images``; requests without are left out. The embeddings are
    kept by content hash for this step and later ones."""
    transfers: Any = None
    """What a connector wants to have transferred; its executor knows what that is."""
    dropped_images: list[str] = field(default_factory=list)
    """Content hashes of images whose embeddings are kept no longer."""
    admission_stop: AdmissionStop = AdmissionStop.NOBODY_WAITS
    total_tokens: int = 0
    """Sum of ``num_tokens``."""

    def add(self, request: Request, num_tokens: int) -> None:
        """Let ``request`` compute its next ``num_tokens`` tokens."""
        self.requests.append(request)
        self.num_tokens.append(num_tokens)
        self.num_computed_tokens.append(request.num_computed_tokens)
        self.total_tokens += num_tokens

    def remove(self, request: Request) -> None:
        """Take ``request`` out again, which ran before."""
        index = self.requests.index(request)
        self.total_tokens -= self.num_tokens[index]
        for parallel in (self.requests, self.num_tokens, self.num_computed_tokens):
            del parallel[index]
        self.images.pop(request, None)
        self.new_blocks = [entry for entry in self.new_blocks if entry[0] is not request]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step."""

    duration_ns: int
    tokens: list[Sequence[int]]
    """Per request of the step, its output token ids: empty unless it samples, else accepted drafts and one more."""
    num_drafts: Sequence[int] = ()
    """Speculative decoding: per request of the step, how many drafts were made behind its output. The executor keeps
    their ids. With asynchronous scheduling the scheduler has already counted on ``num_speculative_tokens`` for each:
    the executor rejects what it did not draft."""


Ticket = TypeVar("Ticket")
"""What stands for a step under way; every executor has its own."""


class Executor(Protocol[Ticket]):
    """Runs steps in the order in which they are submitted, and is asked for their results in the same order."""

    def submit(self, step: Step) -> Ticket:
        """Start a step; return a ticket for it."""

    def collect(self, ticket: Ticket) -> StepResult:
        """The result of the step behind ``ticket``, once it is done."""
