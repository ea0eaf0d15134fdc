"""TensorRT-LLM behind the seam of servers."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.server import ServerScheduler, StateChecker
from kvtwin.engine.trtllm.invariants import TrtllmChecker
from kvtwin.engine.trtllm.scheduler import TrtllmScheduler
from kvtwin.engine.trtllm.settings import TrtllmSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmProfile(TrtllmSettings):
    """Its settings, and what decides with them."""

    def make_scheduler(self, config: EngineConfig, keys: KeySpace | None) -> ServerScheduler:
        """TensorRT-LLM's."""
        return TrtllmScheduler(config, self, keys)

    def make_checker(self, scheduler: ServerScheduler) -> StateChecker:
        """Of TensorRT-LLM's scheduler."""
        assert isinstance(scheduler, TrtllmScheduler)
        return TrtllmChecker(scheduler)
