"""Where the misses of a prefix cache come from: every prompt token of a run has one source."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Admission, Step
from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.engine.request import Request
from kvtwin.experiments.misses.partial_reuse import PartialReuse
from kvtwin.experiments.misses.run_chains import RunChains
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.workloads.prefixes.chains import Chain
from kvtwin.workloads.prefixes.lru_stack import LruStack, Stretch
from kvtwin.workloads.prefixes.shared_prefixes import SharedPrefixes
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

SOURCES = ("cold", "evicted", "unfilled", "sparse", "isolation", "alignment", "uncached", "unknown")
"""Why a prompt token was not hit: its block was never seen; it was seen and is gone; a running request was still
computing it; window or state layers did not keep it; only salt, LoRA or image differ from a block that was seen; it
is in a partial or last block, which cannot hit; prefix caching is off; the prompt is known by length only."""

POSSIBLE = ("evicted", "unfilled", "sparse", "uncached")
"""Sources of misses that a cache which never evicts, keeps everything and is always filled in time would have hit."""

_NUM_PREFIXES = 5
_PERCENTILES = (50, 90)


@dataclass(slots=True)
class _Watched:
    """A request at the server; its chain, if known, and its place in the stack, once it was admitted."""

    record: RequestRecord
    chain: Chain | None = None
    owner: int | None = None


class MissSources(ServerObserver):
    """Splits the prompts that a simulated server serves, at their first admission.

    Every token of them is a hit of the device, a hit of the offload tier, or has one of ``SOURCES``. Beside the engine
    runs a stack of all that it ever computed (:mod:`kvtwin.workloads.prefixes.lru_stack`); its memory grows with the
    distinct prefixes of the workload. The capacity that an evicted block would have needed is exact while requests come
    one by one: else other requests held blocks whose number changed meanwhile, and it is an estimate.
    """

    looks_into_steps = False

    def __init__(self, config: EngineConfig, tree: PrefixTree | None = None) -> None:
        """``tree``: names prefixes, one for all whose :meth:`total` is asked for."""
        self._caches = config.enable_prefix_caching
        self._block_size = config.alignment_tokens if self._caches else config.block_size
        self._is_full_attention = all(spec.kind == "full_attention" for spec in config.group_specs)
        self._knows_needs = self._is_full_attention and len(config.group_specs) == 1
        keeps_all = config.prefix_cache_retention_interval is None
        self._is_sparse = any(spec.is_cached_sparsely for spec in config.group_specs) and not keeps_all
        self._is_all_sparse = all(spec.is_cached_sparsely for spec in config.group_specs) and not keeps_all
        drops = any(config.drops_last_block(spec) for spec in config.group_specs)
        self._dropped_tokens = self._block_size if drops else 0
        self._chains = RunChains(self._block_size, tree or PrefixTree())
        self._stack = LruStack()
        self._watched: dict[Request, _Watched] = {}
        self._coming: dict[int, Chain] = {}
        """By the identity of records that are sent to the server later."""
        self._running: dict[int, Request] = {}
        self._computed_tokens = array("q")
        """Per owner in the stack: tokens that it computed before it let go."""
        self._last_use_ns = array("q")
        """Per owner: when it let go."""
        self._plain_blocks: dict[int, int] = {}
        """Blocks seen of each run of prompts with salt, LoRA or images, named as if they had none."""
        self._identities: set[str] = set()
        self._tokens: Counter[str] = Counter()
        self._knows_any = False
        self._evicted_tokens, self._evicted_needed_blocks, self._evicted_pause_ns = array("q"), array("q"), array("q")
        self._shared = SharedPrefixes()
        self._partial = PartialReuse()

    @classmethod
    def total(cls, config: EngineConfig, parts: Iterable[MissSources]) -> MissSources:
        """What ``parts`` counted of several servers, together."""
        total = cls(config)
        for part in parts:
            total._tokens += part._tokens
            total._knows_any |= part._knows_any
            total._identities |= part._identities
            total._evicted_tokens += part._evicted_tokens
            total._evicted_needed_blocks += part._evicted_needed_blocks
            total._evicted_pause_ns += part._evicted_pause_ns
            total._shared.add_all(part._shared)
            total._partial.add(part._partial)
        return total

    def chain_of(self, record: RequestRecord) -> Chain:
        """The chain of a record that is sent to the server later: it is not made again."""
        chain = self._coming[id(record)] = self._chains.of(record)
        return chain

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        """A request reaches the server."""
        watched = self._watched[request] = _Watched(record)
        if request.parent is None:
            watched.chain = self._coming.pop(id(record), None)

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""
        for request in step.preempted:
            self._let_go(request, now_ns)
        for admission in step.admitted:
            self._admit(admission, now_ns)

    def ended(self, request: Request, now_ns: int) -> None:
        """A request ended."""
        self._let_go(request, now_ns)
        if self._caches and request.parent is None:
            self._partial.ended(self._watched[request].record, request.num_output_tokens)
        del self._watched[request]

    def figures(self) -> dict[str, Any]:
        """The keys of a run's summary. Tokens are None where nothing is known about shared prefixes."""
        tokens = self._tokens
        possible = sum(tokens[name] for name in ("hit", "external_hit", *POSSIBLE))
        misses = {f"miss_{name}_tokens": tokens[name] if self._knows_any else None for name in SOURCES}
        if not self._knows_any:
            misses["miss_unknown_tokens"] = tokens["unknown"]
        return {
            "possible_hit_tokens": possible if self._knows_any else None,
            "possible_hit_rate": possible / tokens.total() if self._knows_any else None,
            **misses,
            **self._eviction_figures(),
            **self._partial.figures(),
            "isolated_by": sorted(self._identities) if tokens["isolation"] else [],
            "top_shared_prefixes": self._shared.top(_NUM_PREFIXES, self._block_size),
        }

    def _eviction_figures(self) -> dict[str, Any]:
        """Percentiles over the evicted tokens: blocks that the pool would have needed, and time since the last use."""
        found: dict[str, Any] = {}
        needed, pauses, weights = (
            np.array(column, dtype=np.int64)
            for column in (self._evicted_needed_blocks, self._evicted_pause_ns, self._evicted_tokens)
        )
        for percent in _PERCENTILES:
            blocks = _percentile(needed, weights, percent) if self._knows_needs else None
            pause_ns = _percentile(pauses, weights, percent)
            found[f"evicted_needed_blocks_p{percent}"] = blocks
            found[f"evicted_pause_p{percent}_s"] = None if pause_ns is None else pause_ns / SECOND_NS
        return found

    def _let_go(self, request: Request, now_ns: int) -> None:
        watched = self._watched[request]
        if watched.owner is None or watched.chain is None:
            return
        self._stack.let_go(watched.owner, watched.chain)
        self._computed_tokens[watched.owner] = request.num_highest_computed_tokens
        self._last_use_ns[watched.owner] = now_ns
        del self._running[watched.owner]
        watched.owner = None

    def _admit(self, admission: Admission, now_ns: int) -> None:
        request = admission.request
        watched = self._watched[request]
        if watched.chain is None:
            watched.chain = self._chains.of(watched.record, is_sibling=request.parent is not None)
        chain = watched.chain
        is_lookup = not admission.resumed and not admission.is_fork
        num_plain_blocks = self._plainly_seen(watched.record, chain) if is_lookup else 0
        stretches = self._stack.hold(chain)
        if is_lookup and not request.is_warm_up:
            self._count(admission, watched.record, chain, stretches, num_plain_blocks * self._block_size, now_ns)
        if is_lookup and self._caches and request.parent is None:
            counts = not request.is_warm_up
            self._partial.admitted(watched.record, admission.num_hit_tokens, self._block_size, counts=counts)
        watched.owner = len(self._last_use_ns)
        self._running[watched.owner] = request
        self._computed_tokens.append(0)
        self._last_use_ns.append(now_ns)

    def _count(
        self,
        admission: Admission,
        record: RequestRecord,
        chain: Chain,
        stretches: list[Stretch],
        plainly_seen_tokens: int,
        now_ns: int,
    ) -> None:
        """Give every token of a prompt its source."""
        tokens, prompt_tokens = self._tokens, record.prompt_tokens
        reach, external = admission.num_hit_tokens, admission.num_external_tokens
        tokens["hit"] += reach - external
        tokens["external_hit"] += external
        self._shared.add(chain.runs, reach // self._block_size, record.request_id)
        seen = sum(stretch.num_blocks for stretch in stretches) * self._block_size
        if not record.knows_prefix and not seen:  # but what further samples share is known
            tokens["unknown"] += prompt_tokens
            return
        self._knows_any = True
        end = max(chain.max_hit_blocks * self._block_size, reach)
        tokens["alignment"] += prompt_tokens - end
        if dropped := min(self._dropped_tokens, max(0, min(seen, end) - reach)):
            tokens["alignment"] += dropped
            reach += dropped
        self._count_lost(admission, stretches, reach, end, now_ns)
        seen = min(max(seen, reach), end)
        isolated = max(0, min(plainly_seen_tokens, end) - seen)
        tokens["isolation"] += isolated
        tokens["cold"] += end - seen - isolated

    def _count_lost(self, admission: Admission, stretches: list[Stretch], reach: int, end: int, now_ns: int) -> None:
        """Tokens from ``reach`` to ``end`` that were seen before."""
        tokens = self._tokens
        block_size, stretch_end = self._block_size, 0
        for owner, num_blocks, distance in stretches:
            stretch_start, stretch_end = stretch_end, stretch_end + num_blocks * block_size
            lost, lost_end = max(stretch_start, reach), min(stretch_end, end)
            if lost >= lost_end:
                continue
            if not self._caches:
                tokens["uncached"] += lost_end - lost
                continue
            runs = self._running.get(owner)
            computed = runs.num_computed_tokens if runs else self._computed_tokens[owner]
            filled_end = min(max(computed // block_size * block_size, lost), lost_end)
            gone = lost
            if self._is_sparse:
                kept_by_some = filled_end if runs or self._is_all_sparse else admission.request.junction_tokens
                gone = min(max(kept_by_some, lost), filled_end)
                tokens["sparse"] += gone - lost
            elif runs and self._is_full_attention:  # it holds what was registered when this was looked up
                filled_end = lost
            tokens["unfilled"] += lost_end - filled_end
            if gone < filled_end:
                tokens["evicted"] += filled_end - gone
                self._evicted_tokens.append(filled_end - gone)
                null_block = 1
                offset = (filled_end - stretch_start) // block_size - 1
                self._evicted_needed_blocks.append(distance + offset + null_block)
                self._evicted_pause_ns.append(now_ns - self._last_use_ns[owner])

    def _plainly_seen(self, record: RequestRecord, chain: Chain) -> int:
        """Leading blocks that were seen without their salt, LoRA and images; the stack does not have ``chain`` yet."""
        identities = list(_identities(record)) if record.cache_salt or record.lora_name or record.images else []
        if not identities and not self._plain_blocks:
            return 0
        self._identities.update(identities)
        runs = chain.runs
        if identities:
            plain = replace(record, cache_salt=None, lora_name=None, images=())
            runs = self._chains.of(plain).runs
        num_plain = 0
        for name, count in runs:
            known = max(self._plain_blocks.get(name, 0), self._stack.num_seen(name))
            num_plain += min(known, count)
            if known < count:
                break
        if identities:
            for name, count in runs:
                self._plain_blocks[name] = max(self._plain_blocks.get(name, 0), count)
        return num_plain


def _identities(record: RequestRecord) -> Iterator[str]:
    """What sets the request's blocks apart from others with the same tokens."""
    if record.cache_salt:
        yield "cache salts"
    if record.lora_name:
        yield "LoRA adapters"
    if record.images:
        yield "images"


def _percentile(values: Any, weights: Any, percent: float) -> int | None:
    """The least of ``values`` with at least ``percent`` of the weights up to it; None without any."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(sums, sums[-1] * percent / 100)])
