"""What the engine counts, under vLLM's definitions (specification, section 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtwin.engine.executor import Admission


@dataclass(slots=True)
class PrefixCacheStatistics:
    """Cumulative lookups, recorded when a request is admitted. Requests that were preempted count apart."""

    requests: int = 0
    queries: int = 0
    """Known tokens of the admitted requests."""
    hits: int = 0
    """Tokens of them found in the cache."""
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    requests_with_hit: int = 0

    def record(self, num_tokens: int, num_hit_tokens: int, *, preempted: bool) -> None:
        """Count one admission."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hit_tokens
            return
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hit_tokens
        if num_hit_tokens:
            self.requests_with_hit += 1


@dataclass(slots=True)
class RecentHitRate:
    """The hit rate that vLLM logs: over the latest steps whose admissions sum to at most ``max_requests``."""

    max_requests: int = 1000
    _records: deque[tuple[int, int, int]] = field(default_factory=deque)
    _requests: int = 0
    _queries: int = 0
    _hits: int = 0

    def record_step(self, requests: int, queries: int, hits: int) -> None:
        """Add what one step admitted; whole steps, not single requests, fall out at the other end."""
        if requests == 0:
            return
        self._records.append((requests, queries, hits))
        self._requests += requests
        self._queries += queries
        self._hits += hits
        while len(self._records) > 1 and self._requests > self.max_requests:
            requests, queries, hits = self._records.popleft()
            self._requests -= requests
            self._queries -= queries
            self._hits -= hits

    def clear(self) -> None:
        """Forget everything (a successful reset of the prefix cache)."""
        self._records.clear()
        self._requests = self._queries = self._hits = 0

    @property
    def rate(self) -> float:
        """Hit tokens per queried token, 0 when nothing was queried."""
        return self._hits / self._queries if self._queries else 0.0


@dataclass(slots=True)
class SpeculationStatistics:
    """Drafts verified, as vLLM's counters ``vllm:spec_decode_*`` have them: padding is a draft, and what a stop cuts
    off was accepted all the same."""

    num_drafts: int = 0
    """Times that drafts of one request were verified."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """Drafts accepted at each position, the first draft behind the known tokens first."""

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """Count one verification."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        self.num_accepted_tokens_per_pos += [0] * (num_drafts - len(self.num_accepted_tokens_per_pos))
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    def clear(self) -> None:
        """Begin at 0."""
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos = []


@dataclass(slots=True)
class EncoderStatistics:
    """Images that steps needed: computed by the encoder, or found in its cache. Those in hit blocks need neither."""

    num_encoded_images: int = 0
    num_encoded_embeddings: int = 0
    num_cached_images: int = 0
    """Also those that the same step encodes for an earlier place or request."""
    num_cached_embeddings: int = 0

    def clear(self) -> None:
        """Begin at 0."""
        self.num_encoded_images = self.num_encoded_embeddings = 0
        self.num_cached_images = self.num_cached_embeddings = 0


@dataclass(slots=True)
class EngineStatistics:
    """Everything counted over a run."""

    prefix_cache: PrefixCacheStatistics = field(default_factory=PrefixCacheStatistics)
    speculation: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    encoder: EncoderStatistics = field(default_factory=EncoderStatistics)
    recent_hit_rate: RecentHitRate = field(default_factory=RecentHitRate)
    external_prefix_cache: PrefixCacheStatistics = field(default_factory=PrefixCacheStatistics)
    """The offload tier: of the known tokens, it is asked for those that the device did not hit."""
    num_steps: int = 0
    """Calls of schedule()."""
    num_preemptions: int = 0
    num_scheduled_tokens: int = 0
    num_recomputed_tokens: int = 0
    """Tokens scheduled that the same request had computed before it was preempted."""
    num_forks: int = 0
    """Requests that started from the blocks of their parent. They look nothing up."""
    num_block_copies: int = 0
    phantom_hit_tokens: int = 0
    """Tokens found in blocks that no step ever filled (vllm#43569); served only with ``vllm_strict``."""
    num_rejected: int = 0
    """Requests that could never run."""

    def record_admissions(self, admitted: Sequence[Admission], *, asks_host: bool) -> None:
        """Count the lookups of a step's admissions (specification, section 3.3); ``asks_host``: in the host too."""
        if not admitted:
            return
        counts = self.prefix_cache
        before = (counts.requests, counts.queries, counts.hits)
        for one in admitted:
            if one.swapped or one.is_fork or one.request.is_warm_up:
                continue
            num_tokens, num_hit_tokens = one.request.num_tokens, one.num_hit_tokens - one.num_external_tokens
            counts.record(num_tokens, num_hit_tokens, preempted=one.resumed)
            if asks_host:
                num_missed_tokens = num_tokens - num_hit_tokens
                self.external_prefix_cache.record(num_missed_tokens, one.num_external_tokens, preempted=one.resumed)
        self.recent_hit_rate.record_step(
            counts.requests - before[0], counts.queries - before[1], counts.hits - before[2]
        )

    def clear(self) -> None:
        """Begin at 0, but for lookups: those of warm-up requests were not counted, and there were no others."""
        self.num_steps = self.num_preemptions = self.num_rejected = self.num_forks = self.num_block_copies = 0
        self.num_scheduled_tokens = self.num_recomputed_tokens = self.phantom_hit_tokens = 0
        self.speculation.clear()
        self.encoder.clear()
