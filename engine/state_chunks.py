"""Where a prefill chunk has to end, so that states worth caching are there (specification, section 10.11)."""

from __future__ import annotations

from kvtwin.engine.chunks import Candidate
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import AdmissionStop
from kvtwin.engine.prefill_checkpoints import PrefillCheckpoints, prefill_end
from kvtwin.engine.request import Request


class StateChunks:
    """Cuts the chunks of models whose states are cached: a state is kept at the end of a chunk, or at a checkpoint."""

    def __init__(self, config: EngineConfig) -> None:
        states = [spec for spec in config.group_specs if spec.kind == "mamba"]
        self._checkpoints = PrefillCheckpoints(config)
        self._have_checkpoints = all(spec.num_prefill_checkpoint_blocks for spec in states)
        self._checkpoint_alignment = states[0].prefill_checkpoint_alignment
        self._block_size = min(spec.block_size for spec in config.group_specs)
        self._unit_tokens = config.alignment_tokens
        self._part_tokens = config.hash_block_size if config.hits_parts else None
        self._num_drafts = config.speculation.num_speculative_tokens if config.speculation else 0
        threshold = config.long_prefill_token_threshold
        longest = min(config.scheduled_tokens_limit, threshold) if threshold else config.scheduled_tokens_limit
        self._can_wait_for_a_boundary = longest >= self._block_size

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """How many of ``num_new_tokens`` tokens after the first ``start`` fit in one step; 0 if none.

        A chunk ends with the prefill, or else at a block's boundary. It stops earlier at the junction, at the last
        block's boundary before the last known token, where parts of blocks can be hit at the last part of the prompt,
        and, if it begins inside a block, with that block. One that reaches no boundary waits for a step with more
        room, unless no step ever has room for a whole block. Where the chunk leaves a checkpoint, only the junction
        stops it.
        """
        last_token = prefill_end(request)
        if start >= last_token or num_new_tokens <= 0:
            return num_new_tokens
        block_size, end = self._block_size, start + num_new_tokens
        leaves_checkpoint = self._leaves_checkpoint(start, end, last_token)
        if end < last_token:
            boundary = end // block_size * block_size
            if boundary > start or self._can_wait_for_a_boundary:
                end = boundary
        stops = []
        if not leaves_checkpoint:
            stops.append(self._checkpoints.position(request.num_tokens, block_size))
            if self._part_tokens:
                part = self._checkpoints.position(request.num_prompt_tokens, self._part_tokens)
                stops += [part] * (stops[0] < part < request.num_prompt_tokens)
            if start % block_size:
                stops.append(start - start % block_size + block_size)
        if start < request.junction_tokens < end:
            stops.append(start + (request.junction_tokens - start) // block_size * block_size)
        return max(0, min([end, *(stop for stop in stops if start < stop < end)]) - start)

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """As far as the last state worth keeping. Padding is left out where it does not fit as a whole."""
        request, start = candidate.request, candidate.hit.num_tokens
        num_left = self.fit(request, start, num_tokens)
        if request.num_tokens - start == 1 and 0 < num_left <= self._num_drafts:
            return 1
        return num_left or AdmissionStop.STATE

    def _leaves_checkpoint(self, start: int, end: int, last_token: int) -> bool:
        if not self._have_checkpoints or end < last_token:
            return False
        position = self._checkpoints.position(last_token, self._unit_tokens)
        return self._checkpoints.fits(start, end, position, self._block_size, self._checkpoint_alignment)


class NoStates:
    """Where no states are cached, chunks end anywhere."""

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """All of them."""
        return num_new_tokens

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """All of them."""
        return num_tokens
