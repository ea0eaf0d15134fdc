"""What must hold of an engine with a connector, beside what must hold of any."""

from __future__ import annotations

from kvtwin.engine.connectors.connected_scheduler import ConnectedScheduler
from kvtwin.engine.executor import Step
from kvtwin.engine.invariants import InvariantChecker, require
from kvtwin.engine.kv_cache_manager import KVCacheManager
from kvtwin.engine.request import Request, RequestStatus


class ConnectedInvariantChecker(InvariantChecker):
    """Checks a :class:`ConnectedScheduler`."""

    _scheduler: ConnectedScheduler
    _may_write_nowhere = True
    """Of a prompt that was loaded whole the last token is computed again, also where no window needs its block."""

    def _block_holders(self) -> list[Request]:
        return [*self._scheduler.running, *self._scheduler.waiting.holding, *self._scheduler.kept.values()]

    def _other_held_blocks(self) -> list[list[list[int]]]:
        return [*super()._other_held_blocks(), [self._scheduler.blocks_to_be_freed()]]

    def _check_waiting(self, request: Request) -> None:
        if request.num_computed_tokens or request.status is RequestStatus.WAITING_FOR_REMOTE_KV:
            require(request in list(self._scheduler.waiting.holding), "{} does not wait first", request)
            require(bool(request.block_tables), "{} waits first and holds no block", request)
            require(request.num_drafts == 0, "{} waits and holds drafts", request)
            return
        super()._check_waiting(request)

    def _check_writes(self, step: Step, cache: KVCacheManager) -> None:
        """vLLM lets others hit a block that a step failed to load, while its request computes it again."""
        if not self._scheduler.recomputes_failed_loads:
            super()._check_writes(step, cache)

    def _check_queues(self) -> None:
        super()._check_queues()
        for request in self._scheduler.kept.values():
            require(request.is_finished, "{} is kept and has not ended", request)
