"""What native offloading knows of one request."""

from __future__ import annotations

from kvtwin.engine.connectors.native.chunks import RequestAccess
from kvtwin.engine.connectors.native.jobs import TransferJob
from kvtwin.engine.request import FinishReason, Request

_COMPLETE = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR)


class OffloadedRequest:
    """A request with the keys of its chunks, its blocks as the executor last saw them, and its transfers under way.

    Invariants: its jobs are one asynchronous load, or any number of stores; ``num_stored_chunks`` chunks of its prefix
    were offered, and are not offered again.
    """

    def __init__(self, request: Request, tokens_per_chunk: int, hashes_per_chunk: int) -> None:
        self.request = request
        self.table: list[int] = []
        """Its blocks when it last ran; a request that waits has none, and one that ended keeps what it had."""
        self.num_stored_chunks = 0
        self.num_local_tokens = 0
        """Tokens that the device had at the last lookup."""
        self.jobs: set[TransferJob] = set()
        self.is_over = False
        """Whether it ended and its last chunks were offered."""
        self._tokens_per_chunk = tokens_per_chunk
        self._hashes_per_chunk = hashes_per_chunk
        self.keys: list[int] = []
        """One per chunk of the known tokens."""
        self._positions: dict[int, int] = {}
        self._access: RequestAccess | None = None
        self._generation = 0

    def access(self, generation: int) -> RequestAccess:
        """What it did in the store since the store was cleared for the ``generation``-th time."""
        if self._access is None or self._generation != generation:
            self._access, self._generation = RequestAccess(self._positions), generation
        return self._access

    def extend_keys(self, num_tokens: int) -> None:
        """Make the keys of the chunks within the first ``num_tokens`` tokens, all of them known."""
        num_chunks = num_tokens // self._tokens_per_chunk
        if num_chunks <= len(self.keys):
            return
        request, step = self.request, self._hashes_per_chunk
        if len(request.block_keys) < num_chunks * step:
            request.content.extend_keys(request.block_keys, num_chunks * step)
        for position in range(len(self.keys), num_chunks):
            key = request.block_keys[(position + 1) * step - 1]
            self.keys.append(key)
            self._positions[key] = position

    def num_computed_tokens_at_end(self) -> int:
        """Tokens that were surely computed when it ended: not the last output, and of an aborted one what it had."""
        request = self.request
        if request.finish_reason in _COMPLETE:
            return max(request.num_prompt_tokens, request.num_tokens - 1)
        return request.num_computed_tokens
