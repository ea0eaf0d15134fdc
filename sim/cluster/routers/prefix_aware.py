"""The prefix-aware router of vLLM's production stack."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router, text_block_tokens
from kvtwin.sim.cluster.view import View


@dataclass
class PrefixAware(Router):
    """The replica that was sent most of the prompt before, in chunks of text; any of several.

    It never forgets a prompt and never looks at the load. Source: vllm-project/production-stack
    ``src/vllm_router/routers/routing_logic.py`` (``prefixaware``).
    """

    name = "prefix-aware"
    knows = Knows.EARLIER_REQUESTS
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    characters_per_token: int = field(default=4, kw_only=True, metadata={"common": True})
    chunk_size: int = 128
    """Characters of a chunk."""

    def begin(self, view: View) -> None:
        self._random = Random(self.seed)
        self._chunk_tokens = text_block_tokens(self.chunk_size, self.characters_per_token)
        self._chunks_of: dict[int, list[int]] = {}
        """Per run, how many of its chunks each replica was sent."""

    def choose(self, request: RoutedRequest, view: View) -> int:
        runs, everybody = request.prompt(self._chunk_tokens), list(range(view.num_replicas))
        nothing = [0] * view.num_replicas
        candidates = everybody
        for name, count in runs:
            sent = self._chunks_of.get(name, nothing)
            longest = max(min(sent[replica], count) for replica in candidates)
            if not longest:
                break
            candidates = [replica for replica in candidates if min(sent[replica], count) == longest]
            if longest < count:
                break
        replica = self._random.choice(candidates)
        for name, count in runs:
            chunks = self._chunks_of.setdefault(name, nothing.copy())
            chunks[replica] = max(chunks[replica], count)
        return replica
