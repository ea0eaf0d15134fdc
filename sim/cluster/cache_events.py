"""What is known of a cache from the KV events that its server publishes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvtwin.engine.executor import Step
from kvtwin.engine.pool_listener import PoolListener, TablePart
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord

_SOME_BLOCK = 1


class CacheEvents(PoolListener, ServerObserver):
    """Follows the KV events of one server: which blocks it stored and removed, and nothing else.

    Events are published when the output of a step is delivered, not when its blocks are handed out, and seen
    ``lag_ns`` later. A key that two blocks have is gone for a follower once one of them is evicted.
    """

    looks_at_keys_alone = True
    looks_into_steps = False
    looks_at_turns = True

    def __init__(self, server: ServerSimulation, lag_ns: int) -> None:
        self._server = server
        self._lag_ns = lag_ns
        self._known: set[int] = set()
        self._changes: list[tuple[int, bool]] = []
        """Keys, and whether they were stored or removed, since the last publication."""
        self._published: deque[tuple[int, list[tuple[int, bool]]]] = deque()
        """When each publication is seen, and what is in it."""
        server.scheduler.kv_cache.pool.listeners.append(self)
        server.observers.append(self)

    def registered(self, blocks: Sequence[int], keys: Sequence[int], part: TablePart | None) -> None:
        self._changes.extend((key, True) for key in keys)

    def evicted(self, block: int, key: int) -> None:
        self._changes.append((key, False))

    def processed(self, step: Step, now_ns: int) -> None:
        if self._changes:
            self._published.append((now_ns + self._lag_ns, self._changes))
            self._changes = []

    def num_cached_tokens(self, record: RequestRecord, now_ns: int) -> int:
        """Leading tokens of the prompt in blocks that are known to be there, the last token among them."""
        self._see(now_ns)
        request = self._server.unsent(record)
        return self._server.scheduler.kv_cache.num_cached_tokens(request, request.num_tokens, self._find)

    def _find(self, key: int) -> int | None:
        return _SOME_BLOCK if key in self._known else None

    def _see(self, now_ns: int) -> None:
        known = self._known
        while self._published and self._published[0][0] <= now_ns:
            for key, is_stored in self._published.popleft()[1]:
                if is_stored:
                    known.add(key)
                else:
                    known.discard(key)
