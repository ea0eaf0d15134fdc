"""SGLang as a server of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.server import ServerScheduler, StateChecker
from kvtwin.engine.sglang.invariants import SglangChecker
from kvtwin.engine.sglang.scheduler import SglangScheduler
from kvtwin.engine.sglang.settings import SglangSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangProfile(SglangSettings):
    """What makes SGLang's scheduler, and what checks it."""

    def make_scheduler(self, config: EngineConfig, keys: KeySpace | None) -> ServerScheduler:
        """SGLang's."""
        return SglangScheduler(config, self, keys)

    def make_checker(self, scheduler: ServerScheduler) -> StateChecker:
        """Of SGLang's scheduler."""
        assert isinstance(scheduler, SglangScheduler)
        return SglangChecker(scheduler)
