"""vLLM 0.33's ``OffloadingConnector``: what its scheduler side decides (docs/host-memory.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtwin.engine.connectors.connector import Connector, ConnectorRole, RemoteMatch, Transfers
from kvtwin.engine.connectors.native.jobs import Fences, OffloadWork, TransferJob
from kvtwin.engine.connectors.native.offloaded_request import OffloadedRequest
from kvtwin.engine.connectors.native.settings import NativeOffloading
from kvtwin.engine.connectors.native.store import ChunkStore
from kvtwin.engine.executor import Step
from kvtwin.engine.request import BlockTables, Request


@dataclass(slots=True)
class OffloadTransfers(Transfers):
    """What the executor reports: beside the requests whose loads are done, all jobs that are."""

    jobs: list[int] = field(default_factory=list)


class NativeOffloadingConnector(Connector):
    """Stores chunks of prompts in the step that computes them, and loads chunks that the device has lost.

    It serves one cache group of full attention. Logs of vLLM's own hold it (tests/parity/golden_offloading). Of 329
    random cases three differ, each at a prompt of one token in blocks of one token: where that was traced, vLLM loads
    it again and again. KV events of the host are missing.

    Invariants (checked by :mod:`kvtwin.engine.connectors.native.invariants`): every job under way is that of one known
    request; its chunks are in the store: those of stores being written, those of loads pinned.
    """

    role = ConnectorRole.BOTH

    def __init__(
        self, settings: NativeOffloading, *, block_size: int, hash_block_size: int, caches_prefixes: bool = True
    ) -> None:
        self.settings = settings
        self.store = ChunkStore(
            settings.num_chunks,
            policy=settings.eviction_policy,
            store_threshold=settings.store_threshold,
            max_tracker_size=settings.max_tracker_size,
        )
        self.requests: dict[str, OffloadedRequest] = {}
        self.jobs: dict[int, TransferJob] = {}
        """All jobs that were ordered and are not done."""
        self.num_stored_blocks = 0
        self.num_loaded_blocks = 0
        self.fences = Fences()
        self._block_size = block_size
        self._tokens_per_chunk = block_size * settings.blocks_per_chunk
        self._hashes_per_chunk = self._tokens_per_chunk // hash_block_size
        self._caches_prefixes = caches_prefixes
        self._num_jobs = 0
        self._first_valid_job = 0
        """Jobs before it were ordered before the store was cleared: nobody waits for them, but the engine goes on."""
        self._stale_jobs: set[int] = set()
        self._being_loaded: set[int] = set()
        """Keys that asynchronous loads are bringing: nobody else loads them meanwhile."""
        self._work = OffloadWork()
        self._allocated: set[int] = set()
        """Device blocks handed out in the step being decided, also those that were hit."""
        self._sync_loads: set[str] = set()
        self._num_sync_tokens = 0

    @property
    def must_deliver(self) -> bool:
        """A store that is lost costs a miss later, no more."""
        return False

    # ---------------------------------------------------------------- lookup

    def match(self, request: Request, num_local_tokens: int) -> RemoteMatch | None:
        """The chunks behind the device's hit, as far as there is no gap.

        None while one of them is still being written, or loaded by somebody, or while the request's own jobs run.
        """
        state = self._known(request)
        state.table, state.num_stored_chunks = [], 0
        if state.jobs:
            return None
        state.extend_keys(request.num_tokens)
        state.num_local_tokens = num_local_tokens
        num_tokens = self._find(state, num_local_tokens)
        self._sync_loads.discard(request.request_id)
        if num_tokens is None:
            return None
        return RemoteMatch(
            num_tokens, num_tokens > 0 and not self._loads_at_once(request, num_local_tokens, num_tokens)
        )

    def _known(self, request: Request) -> OffloadedRequest:
        state = self.requests.get(request.request_id)
        if state is None:
            state = OffloadedRequest(request, self._tokens_per_chunk, self._hashes_per_chunk)
            self.requests[request.request_id] = state
        return state

    def _find(self, state: OffloadedRequest, num_local_tokens: int) -> int | None:
        """Tokens behind the local ones that the store has; less than a whole chunk of them is nothing."""
        tokens_per_chunk, find = self._tokens_per_chunk, self.store.find
        start = end = num_local_tokens // tokens_per_chunk
        if len(state.keys) * tokens_per_chunk - num_local_tokens < tokens_per_chunk:
            return 0
        is_pending = False
        for key in state.keys[start:]:
            chunk = find(key)
            if chunk is None:
                break
            is_pending |= not chunk.is_ready
            end += 1
        if is_pending:
            return None
        num_tokens = end * tokens_per_chunk - num_local_tokens
        if num_tokens < tokens_per_chunk:
            return 0
        if self._being_loaded and not self._being_loaded.isdisjoint(state.keys[start:end]):
            return None
        return num_tokens

    def _loads_at_once(self, request: Request, num_local_tokens: int, num_tokens: int) -> bool:
        """Whether the step itself loads the hit: what its budget has room for, if a token is left to compute."""
        if num_local_tokens + num_tokens >= request.num_tokens:
            return False
        if self._num_sync_tokens + num_tokens > self.settings.sync_load_budget_tokens:
            return False
        self._num_sync_tokens += num_tokens
        self._sync_loads.add(request.request_id)
        return True

    def allocated(self, request: Request, block_tables: BlockTables, num_remote_tokens: int) -> None:
        """Order the load of what :meth:`match` found, now that there are blocks for it."""
        (table,) = block_tables
        self._allocated.update(table)
        if not num_remote_tokens:
            return
        state = self.requests[request.request_id]
        is_sync = request.request_id in self._sync_loads
        first_block = state.num_local_tokens // self._block_size
        num_tokens = state.num_local_tokens + num_remote_tokens
        start = first_block // self.settings.blocks_per_chunk
        end = -(-num_tokens // self._tokens_per_chunk)
        keys = state.keys[start:end]
        state.num_stored_chunks = end
        places = self.store.pin(keys, state.access(self.store.generation))
        blocks = table[first_block : -(-num_tokens // self._block_size)]
        assert not state.jobs
        self._order(state, TransferJob(self._num_jobs, request.request_id, False, keys, blocks, places, is_sync))
        self.num_loaded_blocks += len(blocks)
        if self._caches_prefixes and not is_sync:
            self._being_loaded.update(keys)

    def _order(self, state: OffloadedRequest, job: TransferJob) -> None:
        self._num_jobs += 1
        self.jobs[job.index] = job
        state.jobs.add(job)
        (self._work.stores if job.is_store else self._work.loads).append(job)

    # ---------------------------------------------------------------- what a step stores and waits for

    def scheduled(self, step: Step) -> OffloadWork:
        """What the executor transfers with ``step``: loads, what is stored now, and what must be done before."""
        self._take_tables(step)
        flushes, loads = self._work.flushes, {job.index for job in self._work.loads}
        for request in step.preempted:
            state = self.requests.get(request.request_id)
            if state:
                flushes |= {job.index for job in state.jobs} - loads
        flushes |= self.fences.jobs_reading(self._allocated)
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            state = self.requests.get(request.request_id)
            if state:
                self._store(state, start + num_tokens)
        for request in step.finished:
            state = self.requests.get(request.request_id)
            if state:
                self._store(state, state.num_computed_tokens_at_end())
        for request in step.finished:
            state = self.requests.get(request.request_id)
            if state:
                state.is_over = True
                self.store.finished(state.access(self.store.generation))
                self._forget_if_done(state)
        work, self._work = self._work, OffloadWork()
        self._allocated.clear()
        self._sync_loads.clear()
        self._num_sync_tokens = 0
        return work

    def _take_tables(self, step: Step) -> None:
        for admission in step.admitted:
            self._known(admission.request).table = admission.request.block_tables[0]
            self._allocated.update(admission.block_tables[0])
        for _, new_blocks in step.new_blocks:
            self._allocated.update(new_blocks[0])

    def _store(self, state: OffloadedRequest, num_computed_tokens: int) -> None:
        """Store the full chunks among the first ``num_computed_tokens`` tokens that were not offered yet."""
        request = state.request
        num_tokens = min(num_computed_tokens, request.num_tokens)
        if self.settings.offload_prompt_only:
            num_tokens = min(num_tokens, request.num_prompt_tokens)
        blocks_per_chunk, start = self.settings.blocks_per_chunk, state.num_stored_chunks
        end = min(num_tokens // self._tokens_per_chunk, len(state.table) // blocks_per_chunk)
        if end <= start:
            return
        state.extend_keys(end * self._tokens_per_chunk)
        offered = state.keys[start:end]
        places = self.store.offer(offered, state.access(self.store.generation))
        if places is None:
            return
        state.num_stored_chunks = end
        if places:
            self._order_store(state, start, offered, places)

    def _order_store(self, state: OffloadedRequest, start: int, offered: Sequence[int], places: dict[int, int]) -> None:
        blocks_per_chunk, request = self.settings.blocks_per_chunk, state.request
        blocks: list[int] = []
        for position, key in enumerate(offered, start):
            if key in places:
                blocks += state.table[position * blocks_per_chunk : (position + 1) * blocks_per_chunk]
        job = TransferJob(self._num_jobs, request.request_id, True, list(places), blocks, list(places.values()))
        self._order(state, job)
        self.num_stored_blocks += len(blocks)
        if request.is_finished:
            self.fences.add(job)
            if not self._allocated.isdisjoint(blocks):
                self._work.flushes.add(job.index)

    # ---------------------------------------------------------------- what was done

    def progressed(self, transfers: Transfers) -> None:
        """Take note of the jobs that are done: what was stored can be loaded, what was loaded can be evicted."""
        assert isinstance(transfers, OffloadTransfers)
        for index in transfers.jobs:
            if index < self._first_valid_job:
                self._stale_jobs.discard(index)
                continue
            job = self.jobs.pop(index)
            state = self.requests[job.request_id]
            if job.is_store:
                self.store.written(job.keys)
                self.fences.remove(job)
            else:
                self.store.unpin(job.keys)
                self._being_loaded.difference_update(job.keys)
            state.jobs.remove(job)
            self._forget_if_done(state)

    def _forget_if_done(self, state: OffloadedRequest) -> None:
        if state.is_over and not state.jobs:
            del self.requests[state.request.request_id]

    def finished(self, request: Request, block_tables: BlockTables) -> bool:
        """Let the blocks go: stores that still read them are waited for where the blocks are handed out again."""
        state = self.requests.get(request.request_id)
        if state:
            for job in state.jobs:
                if job.is_store:
                    self.fences.add(job)
        return False

    def has_pending_work(self) -> bool:
        """Whether transfers are under way, so that the engine must go on even without requests."""
        return bool(self.jobs or self._stale_jobs)

    def reset_cache(self) -> bool:
        """Clear the store between two steps. Jobs under way are waited for in the next step and then forgotten."""
        self._work.flushes.update(self.jobs)
        for request_id, state in list(self.requests.items()):
            if state.request.is_finished:
                del self.requests[request_id]
        self.store.clear()
        for state in self.requests.values():
            state.num_stored_chunks = 0
            state.jobs.clear()
        self._first_valid_job = self._num_jobs
        self._stale_jobs.update(self.jobs)
        self.jobs.clear()
        self.fences.clear()
        self._being_loaded.clear()
        return True
