"""A request as the engine sees it, from arrival to its last token."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import Content

BlockTables = list[list[int]]
"""One list of block ids per cache group: where a request's tokens are kept, in order."""


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    WAITING_FOR_REMOTE_KV = "waiting for remote KV"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. The last two are ours (docs/deviations.md), the others vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    CAPACITY = "capacity"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """State of one request.

    "Known" tokens are the prompt and the output tokens delivered so far. "Computed" counts tokens of scheduled
    steps, also of those still in flight. Block tables hold one list of block ids per cache group; they belong to
    the KV cache manager, everything else to the scheduler.

    Invariants: ``num_computed_tokens <= num_tokens + num_placeholders``; a request that is not running holds no
    blocks; ``block_keys`` names leading full blocks of the known tokens and never shrinks.
    """

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    content: Content
    _: KW_ONLY
    arrival_ns: int = 0
    priority: int = 0
    """The smaller goes first."""
    lora: LoraAdapter | None = None
    images: tuple[Image, ...] = ()
    """In the order of the prompt; they do not overlap."""
    eos_token_id: int | None = None
    """None: end-of-sequence is ignored."""
    stop_token_ids: frozenset[int] = frozenset()
    session: str | None = None
    """The conversation that the request is a turn of, if any."""
    parent: Request | None = None
    """The first of several samples of one prompt; None for itself and where there is but one sample."""
    # What follows is the engine's to change.
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    finish_message: str = ""
    max_total_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    """Known tokens."""
    num_computed_tokens: int = 0
    num_highest_computed_tokens: int = 0
    """Most tokens that were ever computed, so that recomputation can be counted."""
    num_placeholders: int = 0
    """Output tokens that scheduled steps will deliver (async scheduling)."""
    num_drafts: int = 0
    """Drafts of the next tokens, to be verified when the request is scheduled next (speculative decoding)."""
    num_tokens_in_flight: int = 0
    """Tokens of scheduled steps whose output was not processed yet."""
    num_in_flight_samples: int = 0
    """Outputs still to be delivered, also those that a preemption made stale."""
    drop_samples: int = 0
    """How many of these will be thrown away (forced reset of the prefix cache)."""
    is_prefill_chunk: bool = False
    """Whether the latest scheduled step ends before the last known token, and so samples nothing."""
    is_deferred: bool = False
    """Whether admission passed over the request (LoRA limit, output in flight) and has not come back to it."""
    is_warm_up: bool = False
    """Whether the request is served, but left out of the statistics of lookups."""
    num_preemptions: int = 0
    block_keys: list[int] = field(default_factory=list)
    junction_tokens: int = 0
    """Longest prefix that some cache group had, though not all; its tail is kept (specification, section 10.8)."""
    block_tables: BlockTables = field(default_factory=list)
    num_forgotten_blocks: list[int] = field(default_factory=list)
    """Per group, how many leading positions of the table surely hold no block."""
    num_slots: int = 0
    """Tokens for which all groups have a slot, in the request's table or reserved for it."""
    num_registered_blocks: list[int] = field(default_factory=list)
    """Per group, how many leading blocks of the table were given their key."""

    def __post_init__(self) -> None:
        self.max_total_tokens = self.num_prompt_tokens + self.max_tokens
        self.num_tokens = self.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens delivered so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    def __repr__(self) -> str:
        return f"<Request {self.request_id} {self.status.value} {self.num_computed_tokens}/{self.num_tokens}>"
