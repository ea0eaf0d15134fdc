"""What must hold of native offloading between two steps."""

from __future__ import annotations

from kvtwin.engine.connectors.native.arc import AdaptiveReplacement
from kvtwin.engine.connectors.native.connector import NativeOffloadingConnector
from kvtwin.engine.connectors.native.lru import LeastRecentlyUsed
from kvtwin.engine.connectors.native.store import ChunkStore
from kvtwin.engine.invariants import require


def check_offloading(connector: NativeOffloadingConnector) -> None:
    """Raise InvariantViolation where the connector contradicts itself."""
    check_store(connector.store)
    chunks = connector.store.policy.chunks()
    num_readers = dict.fromkeys(chunks, 0)
    for job in connector.jobs.values():
        require(job in connector.requests[job.request_id].jobs, "job {} has no request", job.index)
        for key in job.keys:
            require(key in chunks, "job {} lost a chunk", job.index)
            if job.is_store:
                require(not chunks[key].is_ready, "what job {} is writing can be read", job.index)
                num_readers[key] = -1
            else:
                num_readers[key] += 1
    for key, chunk in chunks.items():
        require(chunk.num_readers == num_readers[key], "chunk {} counts its jobs wrongly", chunk.index)
    for jobs in connector.fences.blocks().values():
        require(jobs <= connector.jobs.keys(), "fences wait for jobs that are done: {}", jobs)


def check_store(store: ChunkStore) -> None:
    """Raise InvariantViolation where the store contradicts itself."""
    chunks = store.policy.chunks()
    places = [chunk.index for chunk in chunks.values()] + store.free_places
    require(sorted(places) == list(range(store.num_used_places)), "places are lost or used twice: {}", places)
    require(store.num_used_places <= store.num_chunks, "{} places are used", store.num_used_places)
    idle = {key for key, chunk in chunks.items() if chunk.num_readers == 0}
    require(len(idle) == store.num_idle_chunks, "{} chunks are idle", len(idle))
    policy = store.policy
    if isinstance(policy, LeastRecentlyUsed):
        require(set(policy.idle_keys()) == idle, "not all that is idle can be evicted: {}", idle)
    elif isinstance(policy, AdaptiveReplacement):
        policy.check(require)
