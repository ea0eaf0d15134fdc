"""An observer of the engine that writes down everything that happens to one request, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.contiguous.range_pool import RangePool
from kvtwin.engine.demand import Demand
from kvtwin.engine.executor import AdmissionStop, Step
from kvtwin.engine.hit import Hit
from kvtwin.engine.observer import Observer
from kvtwin.engine.pool_listener import PoolListener, TablePart
from kvtwin.engine.request import BlockTables, Request, RequestStatus
from kvtwin.engine.scheduler import Scheduler
from kvtwin.experiments.narration.event import Event, Eviction, Prefix


class Narrator(Observer, PoolListener):
    """Follows the requests with one id. ``now_ns`` returns the time.

    It listens to the pool of ``scheduler``; its creator must also make it observe the scheduler.
    """

    def __init__(self, request_id: str, scheduler: Scheduler, now_ns: Callable[[], int]) -> None:
        self.events: list[Event] = []
        self._request_id = request_id
        self._scheduler = scheduler
        self._now_ns = now_ns
        self._request: Request | None = None
        self._lookup: dict[str, Any] = {}
        self._demands: dict[Request, Demand] = {}
        """The latest of each request, in the step being decided."""
        self._gets_blocks = False
        """Whether a request's demand was met and it has not got its blocks yet."""
        self._taken: list[dict[str, Any]] = []
        """Evictions that no event has told yet."""
        self._cached: dict[int, Prefix] = {}
        """By key, who computed what is cached."""
        self._evictions: dict[int, Eviction] = {}
        """By key, what was cached once."""
        scheduler.kv_cache.pool.listeners.append(self)

    # ---------------------------------------------------------------- what the engine tells

    def arrived(self, request: Request) -> None:
        if request.request_id != self._request_id:
            return
        self._request = request
        self._tell(
            "arrive",
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            ahead=self._position(request),
            running=len(self._scheduler.running),
        )

    def looked_up(self, request: Request, keys: Sequence[Sequence[int]], hit: Hit) -> None:
        if request is not self._request:
            return
        cache = self._scheduler.kv_cache
        groups = []
        for index, (group, table) in enumerate(zip(getattr(cache, "groups", ()), hit.block_tables, strict=False)):
            groups.append(
                {
                    "group": index,
                    "kind": group.kind,
                    "block_size": group.block_size,
                    "full_blocks": len(keys[index]),
                    "hit_blocks": list(table),
                    "broken": self._broken(keys[index], table, group.block_size, request),
                }
            )
        self._lookup = {
            "known_tokens": request.num_tokens,
            "hit_tokens": hit.num_tokens,
            "external_tokens": hit.num_external_tokens,
            "phantom_tokens": hit.num_phantom_tokens,
            "junction_tokens": request.junction_tokens,
            "swapped": hit.is_swapped,
            "loaded_blocks": len(hit.loads),
            "groups": groups,
        }

    def demanded(self, request: Request, demand: Demand) -> None:
        self._demands[request] = demand
        self._gets_blocks = demand.is_met

    def evicted(self, block: int, key: int) -> None:
        self._taken.append({"block": block, "key": key})

    def granted(self, request: Request, blocks: BlockTables) -> None:
        self._gets_blocks = False
        taken, self._taken = self._taken, []
        for one in taken:
            key = one.pop("key")
            prefix = self._cached.get(key)
            if prefix is None:
                continue
            one |= {"cached_for": prefix.request_id, "position": prefix.position}
            if not self._pool_has(key):
                del self._cached[key]
                self._evictions[key] = Eviction(prefix, self._step_index(), request.request_id)
        if request is self._request and (any(blocks) or taken):
            self._tell("take", blocks=[list(group) for group in blocks], evicted=taken)

    def registered(self, blocks: Sequence[int], keys: Sequence[int], part: TablePart | None) -> None:
        if part is None or self._gets_blocks:  # blocks that are loaded from the host are told of by the lookup
            return
        for key, position in zip(keys, part.kept, strict=True):
            self._cached.setdefault(key, Prefix(part.request.request_id, position))
            self._evictions.pop(key, None)
        if part.request is self._request and part.kept:
            self._tell("cache", group=part.group_index, positions=list(part.kept))

    def preempted(self, request: Request, needed_by: Request | None) -> None:
        if request is not self._request:
            return
        facts: dict[str, Any] = {
            "needed_by": needed_by.request_id if needed_by else None,
            "needed_by_itself": needed_by is request,
        }
        if needed_by:
            facts |= _demand_facts(self._demands[needed_by])
        self._tell(
            "preempt",
            **facts,
            computed_tokens=request.num_computed_tokens,
            output_tokens=request.num_output_tokens,
            preemptions=request.num_preemptions + 1,
        )

    def releases(self, request: Request) -> None:
        if request is not self._request or not request.block_tables:
            return
        pool = self._scheduler.kv_cache.pool
        if isinstance(pool, RangePool):
            self._tell("free", slots=request.num_slots)
            return
        if not isinstance(pool, BlockPool):  # of another server: its end says enough
            return
        first: list[int] = []
        last: list[int] = []
        kept: list[int] = []
        for table in request.block_tables:
            group_first: list[int] = []
            for block in reversed(table):
                if block == NULL_BLOCK:
                    continue
                if pool.ref_counts[block] > 1:
                    kept.append(block)
                elif pool.keys[block] == NO_KEY:
                    group_first.append(block)
                else:
                    last.append(block)
            first = group_first + first
        swap = self._scheduler.kv_cache.swap
        saved = swap is not None and request in swap
        self._tell("free", reused_first=first, evicted_last=last, held_by_others=kept, saved_in_host=saved)

    def scheduled(self, step: Step) -> None:
        request = self._request
        if request is not None:
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and request not in step.preempted:
                self._tell_wait(request, step)
            elif request.status is RequestStatus.RUNNING:
                self._tell_run(request, step)
        self._demands.clear()
        self._lookup = {}

    def ended(self, request: Request) -> None:
        if request.request_id != self._request_id:
            return
        self._tell(
            "end",
            reason=str(request.finish_reason),
            message=request.finish_message,
            output_tokens=request.num_output_tokens,
            preemptions=request.num_preemptions,
        )
        self._request = None

    # ---------------------------------------------------------------- what is made of it

    def _tell(self, kind: str, **facts: Any) -> None:
        step = self._step_index()
        self.events.append(Event(step if step >= 0 else None, self._now_ns(), kind, facts))

    def _step_index(self) -> int:
        return self._scheduler.statistics.num_steps - 1

    def _position(self, request: Request) -> int:
        return next(index for index, waiting in enumerate(self._scheduler.waiting) if waiting is request)

    def _tell_wait(self, request: Request, step: Step) -> None:
        head = next(iter(self._scheduler.waiting))
        reason = step.admission_stop.value
        if request.is_deferred:
            under_way = request.num_in_flight_samples > request.drop_samples
            of_parent = self._scheduler.config.parallel_sampling == "fork" and request.parent is not None
            reason = "--max-loras adapters already run"
            if under_way:
                reason = "its last output is still in flight"
            elif of_parent:
                reason = "its parent's prompt is not computed yet"
            elif request.lora is None:
                reason = "its next image finds no room in the encoder cache, or no compute budget left in the step"
        facts: dict[str, Any] = {"reason": reason, "ahead": self._position(request)}
        if step.admission_stop is AdmissionStop.MEMORY and not request.is_deferred:
            facts["head"] = head.request_id
            demand = self._demands.get(head)
            if demand is None and self._scheduler.config.caches_states:
                facts["reason"] = "the state that the head hits is written in this step"
            elif demand is not None:
                facts |= _demand_facts(demand)
                pool = self._scheduler.kv_cache.pool
                if isinstance(pool, RangePool):
                    facts["largest_range"] = max((end - start for start, end in pool.free_ranges()), default=0)
        if step.admission_stop is AdmissionStop.PREEMPTION:
            facts["preempted"] = [victim.request_id for victim in step.preempted]
        if head is request and self._lookup:
            facts["hit_tokens"] = self._lookup["hit_tokens"]
        self._tell("wait", **facts)

    def _tell_run(self, request: Request, step: Step) -> None:
        if request not in step.requests:
            used_up = step.total_tokens >= self._scheduler.config.token_budget
            self._tell("idle", reason="the token budget is used up" if used_up else "nothing to compute yet")
            return
        index = step.requests.index(request)
        admission = next((each for each in step.admitted if each.request is request), None)
        facts = {
            "tokens": step.num_tokens[index],
            "computed_tokens": step.num_computed_tokens[index],
            "samples": step.samples[index],
            "drafts": step.num_drafts.get(request, 0),
            "budget_before": self._scheduler.config.token_budget - sum(step.num_tokens[:index]),
        }
        for replaced in step.replaced_blocks:
            if replaced.request is request:
                self._tell("copy", group=replaced.group_index, position=replaced.position, block=replaced.block)
        if admission is None:
            self._tell("decode" if self._decodes(request, facts) else "prefill", **facts)
            return
        if admission.is_fork:
            assert request.parent is not None
            facts |= {"fork_of": request.parent.request_id, "shared_blocks": admission.block_tables}
        # Told in the order in which it happened: the blocks were taken after the lookup and the gate.
        at = len(self.events)
        while at and self.events[at - 1].step == step.index and self.events[at - 1].kind in ("take", "cache"):
            at -= 1
        later, self.events[at:] = self.events[at:], []
        if self._lookup:
            self._tell("lookup", **self._lookup)
        if request in self._demands:
            self._tell("gate", **_demand_facts(self._demands[request]))
        self.events += later
        self._tell("admit", resumed=admission.resumed, running=len(self._scheduler.running), **facts)

    def _decodes(self, request: Request, facts: dict[str, Any]) -> bool:
        return bool(facts["computed_tokens"] >= request.num_prompt_tokens and facts["samples"])

    def _broken(self, keys: Sequence[int], table: Sequence[int], block_size: int, request: Request) -> Any:
        """Why the hit ends where it does: the first block after it, and what became of its key."""
        position = len(table)
        if position >= len(keys) or (position + 1) * block_size >= request.num_tokens:
            return None
        key = keys[position]
        broken: dict[str, Any] = {"position": position, "first_token": position * block_size}
        eviction = self._evictions.get(key)
        if eviction:
            broken |= {
                "cached_for": eviction.prefix.request_id,
                "evicted_in_step": eviction.step,
                "taken_by": eviction.taken_by,
            }
        elif self._pool_has(key):
            broken["cached"] = True
        return broken

    def _pool_has(self, key: int) -> bool:
        pool = self._scheduler.kv_cache.pool
        return isinstance(pool, BlockPool) and pool.find(key) is not None


def _demand_facts(demand: Demand) -> dict[str, int]:
    return {
        "needed_blocks": demand.num_missing_blocks + demand.num_claimed_blocks + demand.num_reserved_blocks,
        "new_blocks": demand.num_missing_blocks,
        "idle_hit_blocks": demand.num_claimed_blocks,
        "reserved_blocks": demand.num_reserved_blocks,
        "free_blocks": demand.num_free_blocks,
    }
