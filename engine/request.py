"""A request as the engine sees it, from arrival to its last token."""

from __future__ import annotations

from enum import Enum, StrEnum

from kvtwin.engine.block_hashes import LoraAdapter
from kvtwin.engine.block_keys import Content

BlockTables = list[list[int]]
"""One list of block ids per cache group: where a request's tokens are kept, in order."""


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. The first three are vLLM's; the last two are ours (docs/deviations.md)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    CAPACITY = "capacity"
    REJECTED = "rejected"


class Request:
    """State of one request.

    "Known" tokens are the prompt and the output tokens delivered so far. "Computed" counts tokens of scheduled
    steps, also of those still in flight. Block tables hold one list of block ids per cache group; they belong to
    the KV cache manager, everything else to the scheduler.

    Invariants: ``num_computed_tokens <= num_tokens + num_placeholders``; a request that is not running holds no
    blocks; ``block_keys`` names leading full blocks of the known tokens and never shrinks.
    """

    __slots__ = (
        "arrival_ns",
        "block_keys",
        "block_tables",
        "content",
        "drop_samples",
        "eos_token_id",
        "finish_message",
        "finish_reason",
        "is_deferred",
        "is_prefill_chunk",
        "is_warm_up",
        "junction_tokens",
        "lora",
        "max_tokens",
        "max_total_tokens",
        "num_computed_tokens",
        "num_drafts",
        "num_forgotten_blocks",
        "num_highest_computed_tokens",
        "num_in_flight_samples",
        "num_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_slots",
        "num_tokens",
        "num_tokens_in_flight",
        "parent",
        "priority",
        "request_id",
        "session",
        "status",
        "stop_token_ids",
    )

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        content: Content,
        *,
        arrival_ns: int = 0,
        priority: int = 0,
        lora: LoraAdapter | None = None,
        eos_token_id: int | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
        session: str | None = None,
        parent: Request | None = None,
    ) -> None:
        """``eos_token_id`` None means that end-of-sequence is ignored. A smaller ``priority`` goes first.

        ``session`` names the conversation that the request is a turn of, if any. ``parent`` is the first of several
        samples of one prompt, None for itself and where there is but one sample.
        """
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.max_total_tokens = num_prompt_tokens + max_tokens
        self.content = content
        self.arrival_ns = arrival_ns
        self.priority = priority
        self.lora = lora
        self.eos_token_id = eos_token_id
        self.stop_token_ids = stop_token_ids
        self.session = session
        self.parent = parent
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.finish_message = ""
        self.num_tokens = num_prompt_tokens
        """Known tokens."""
        self.num_computed_tokens = 0
        self.num_highest_computed_tokens = 0
        """Most tokens that were ever computed, so that recomputation can be counted."""
        self.num_placeholders = 0
        """Output tokens that scheduled steps will deliver (async scheduling)."""
        self.num_drafts = 0
        """Drafts of the next tokens, to be verified when the request is scheduled next (speculative decoding)."""
        self.num_tokens_in_flight = 0
        """Tokens of scheduled steps whose output was not processed yet."""
        self.num_in_flight_samples = 0
        """Outputs still to be delivered, also those that a preemption made stale."""
        self.drop_samples = 0
        """How many of these will be thrown away (forced reset of the prefix cache)."""
        self.is_prefill_chunk = False
        """Whether the latest scheduled step ends before the last known token, and so samples nothing."""
        self.is_deferred = False
        """Whether admission passed over the request (LoRA limit, output in flight) and has not come back to it."""
        self.is_warm_up = False
        """Whether the request is served, but left out of the statistics of lookups."""
        self.num_preemptions = 0
        self.block_keys: list[int] = []
        self.junction_tokens = 0
        """Longest prefix that some cache group had, though not all; its tail is kept (specification, section 10.8)."""
        self.block_tables: BlockTables = []
        self.num_forgotten_blocks: list[int] = []
        """Per group, how many leading positions of the table surely hold no block."""
        self.num_slots = 0
        """Tokens for which all groups have a slot, in the request's table or reserved for it."""
        self.num_registered_blocks: list[int] = []
        """Per group, how many leading blocks of the table were given their key."""

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
