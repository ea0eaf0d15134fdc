"""How much of a prompt each of several servers has cached."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import Request
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord


class CachedTokens:
    """Looks prompts up in the caches of ``servers``. The keys of blocks are made once for those that share them."""

    def __init__(self, servers: Sequence[ServerSimulation]) -> None:
        self._servers = servers

    def of(self, record: RequestRecord) -> list[int]:
        """Leading tokens of the prompt that each server has cached at this instant."""
        requests: dict[KeySpace, Request] = {}
        found = []
        for server in self._servers:
            keys = server.scheduler.keys
            request = requests.get(keys)
            if request is None or record.lora_name:  # servers number their adapters themselves
                request = requests[keys] = server.unsent(record)
            found.append(server.scheduler.kv_cache.num_cached_tokens(request))
        return found


class KeySpaces:
    """One for all engines with the same settings."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str, str | None, int], KeySpace] = {}

    def of(self, config: EngineConfig) -> KeySpace:
        """That of an engine."""
        settings = config.key_settings
        if settings not in self._made:
            self._made[settings] = KeySpace(*settings)
        return self._made[settings]
