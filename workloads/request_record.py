"""The request record: what a workload says about one request, whatever file it came from.

Readers yield records one by one, in file order; nothing here knows about blocks, schedulers or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_SAMPLES = 16_384
"""Most samples of one prompt: vLLM's limit for the API's ``n``."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Placeholder tokens of one image: ``length_tokens`` tokens from prompt position ``offset_tokens`` on."""

    content_hash: str
    offset_tokens: int
    length_tokens: int
    text_positions: tuple[int, ...] = ()
    """Which of these tokens are text, such as the image's line breaks, counted from its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """An earlier request that must have completed, or with ``dispatched`` been sent, ``delay_ns`` before this one."""

    request_id: str
    delay_ns: int
    dispatched: bool = False


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request of a workload.

    The prompt is known in one of three ways, best first:

    * ``token_ids``: the tokens themselves (``len(token_ids) == prompt_tokens``);
    * ``hash_ids`` with ``hash_block_tokens``: id ``i`` names the *whole prefix* that ends with the prompt's
      ``i``-th stretch of ``hash_block_tokens`` tokens (chained, as in Mooncake's traces). Tokens behind the
      last id are private to the request. Ids are opaque ints; equal ids mean equal prefixes. Where they stand for
      different numbers of tokens, ``hash_id_ends`` says instead at which token each one's stretch ends; the last
      may end in the output and names its tokens too, so that the prompt of the next turn can repeat them;
    * neither: only the length is known, so nothing can be said about prefix hits.

    The output is known by length and, when ``output_token_ids`` is given, by content. ``accepted_drafts`` tells, for a
    server that speculates, how many drafts each verification of the request accepts, in order.

    With ``n`` above 1 the client asks for that many samples of the prompt, all of ``output_tokens`` tokens;
    ``output_token_ids`` are the first one's, and what the others say nobody knows.

    ``arrival_ns`` counts from the start of the workload; the request is never sent before. A record with
    ``think_time_ns`` is a later turn of its ``session``: it is sent that long after the session's earlier turns
    *completed*. ``after`` names requests of other sessions, or turns of its own, that it waits for as well: a
    sub-agent is a session whose first turn waits for a turn of its parent. They come earlier in the workload and
    have a session and an id of their own. The ``arrival_ns`` of a request that waits is as if answers took no time.

    ``data_parallel_rank`` asks vLLM's balancer for one of several replicas, counted from 0.

    Only the simulator can tell whether two requests with equal ``request_id`` are in flight together, so it
    decides on them. ``source`` names where the record was read, as ``file:line``, for error messages.
    """

    request_id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    token_ids: Sequence[int] | None = None
    hash_ids: Sequence[int] | None = None
    hash_block_tokens: int | None = None
    hash_id_ends: Sequence[int] | None = None
    output_token_ids: Sequence[int] | None = None
    accepted_drafts: Sequence[int] | None = None
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    lora_name: str | None = None
    images: tuple[ImageSpan, ...] = ()
    session: str | None = None
    think_time_ns: int | None = None
    after: tuple[Predecessor, ...] = ()
    data_parallel_rank: int | None = None
    source: str = ""

    @property
    def knows_prefix(self) -> bool:
        """Whether prefix hits of this request can be known at all."""
        return self.token_ids is not None or self.hash_ids is not None

    @property
    def waits(self) -> bool:
        """Whether other requests decide when this one is sent."""
        return self.think_time_ns is not None or bool(self.after)

    @property
    def id_ends(self) -> Sequence[int]:
        """At which token the stretch of each of ``hash_ids`` ends, before it is cut off at ``num_named_tokens``."""
        if self.hash_id_ends is not None:
            return self.hash_id_ends
        assert self.hash_ids is not None
        assert self.hash_block_tokens is not None
        step = self.hash_block_tokens
        return range(step, step * len(self.hash_ids) + step, step)

    @property
    def num_named_tokens(self) -> int:
        """How many leading tokens ``hash_ids`` name: of the prompt, and behind it only with ``hash_id_ends``."""
        ends = self.id_ends
        last = ends[-1] if ends else 0
        return last if self.hash_id_ends is not None else min(last, self.prompt_tokens)
