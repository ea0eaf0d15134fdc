"""What is counted of a workload's requests, read as columns or one by one."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from kvtwin.experiments.traces.session_facts import SessionFacts
from kvtwin.workloads.columns import RecordColumns
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache
from kvtwin.workloads.prefixes.infinite_columns import InfiniteColumns
from kvtwin.workloads.prefixes.shared_prefixes import SharedPrefixes
from kvtwin.workloads.request_record import RequestRecord


class Counted:
    """What is counted of the requests, which come in order."""

    def __init__(self, block_size: int, num_top_prefixes: int) -> None:
        self.block_size, self.num_top_prefixes = block_size, num_top_prefixes
        self.cache, self.shared = InfiniteCache(), SharedPrefixes()
        self.cache_of_columns = InfiniteColumns(block_size)
        self.inputs, self.outputs, self.known_by = Counter[int](), Counter[int](), Counter[str]()
        self.full_blocks = self.hit_blocks = self.queried_tokens = self.hit_tokens = self.prompts_with_hit = 0
        self.sessions, self.loras, self.salts = SessionFacts(), set[str](), set[str]()
        self.with_priority = self.with_images = self.further_samples = 0
        self.gaps, self.instants = _Gaps(), _Instants()

    def add(self, record: RequestRecord) -> None:
        """The next request."""
        self._add_lengths([record.arrival_ns], [record.prompt_tokens], [record.output_tokens])
        self.sessions.add(record)
        if record.lora_name is not None:
            self.loras.add(record.lora_name)
        if record.cache_salt:
            self.salts.add(record.cache_salt)
        self.with_priority += record.priority != 0
        self.with_images += bool(record.images)
        self.known_by[_known_by(record)] += 1
        most_hits = (record.prompt_tokens - 1) // self.block_size
        if record.knows_prefix:
            chain = prefix_chain(record, self.block_size)
            hits = self.cache.add(chain)
            usable = min(hits, most_hits)
            if self.num_top_prefixes:
                self.shared.add(chain.runs, usable, record.request_id)
                for _ in range(record.n - 1):
                    self.shared.add(chain.runs, most_hits, record.request_id)
            self._add_hits(chain.num_prompt_blocks, hits, record.prompt_tokens, usable, usable > 0)
        if again := record.n - 1:  # they find what the first sample computed
            self.further_samples += again
            blocks = again * (record.prompt_tokens // self.block_size)
            queried_tokens = again * record.prompt_tokens
            self._add_hits(blocks, blocks, queried_tokens, again * most_hits, again * (most_hits > 0))

    def add_columns(self, columns: RecordColumns) -> None:
        """The next requests. NotPlainError: an id follows another one than before."""
        prompts = columns.prompt_tokens
        self._add_lengths(columns.arrival_ns.tolist(), prompts.tolist(), columns.output_tokens.tolist())
        if columns.hash_ids is None:
            self.known_by["length"] += len(columns)
            return
        self.known_by["hash_ids"] += len(columns)
        hits = self.cache_of_columns.add(columns)
        usable = np.minimum(hits, (prompts - 1) // self.block_size)
        full_blocks = int((prompts // self.block_size).sum())
        self._add_hits(full_blocks, int(hits.sum()), int(prompts.sum()), int(usable.sum()), int((usable > 0).sum()))

    def _add_lengths(self, arrivals_ns: list[int], inputs: list[int], outputs: list[int]) -> None:
        self.inputs.update(inputs)
        self.outputs.update(outputs)
        for arrival_ns in arrivals_ns:
            self.gaps.add(arrival_ns)
            self.instants.add(arrival_ns)

    def _add_hits(self, full: int, hit: int, queried_tokens: int, usable: int, with_hit: int) -> None:
        self.full_blocks += full
        self.hit_blocks += hit
        self.queried_tokens += queried_tokens
        self.hit_tokens += usable * self.block_size
        self.prompts_with_hit += with_hit


class _Gaps:
    """Gaps between arrivals, summed in integers."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._number = self._sum = self._sum_of_squares = 0

    def add(self, arrival_ns: int) -> None:
        if self._last_ns is not None:
            gap = arrival_ns - self._last_ns
            self._number += 1
            self._sum += gap
            self._sum_of_squares += gap * gap
        self._last_ns = arrival_ns

    def coefficient_of_variation(self) -> float | None:
        """Deviation over mean; None when all requests arrive together."""
        if not self._sum:
            return None
        return math.sqrt(self._number * self._sum_of_squares - self._sum**2) / self._sum


class _Instants:
    """How many arrival times there are, and how many requests share the busiest."""

    def __init__(self) -> None:
        self.number = self.most = self._here = 0
        self._last_ns: int | None = None

    def add(self, arrival_ns: int) -> None:
        if arrival_ns != self._last_ns:
            self.number += 1
            self._here = 0
            self._last_ns = arrival_ns
        self._here += 1
        self.most = max(self.most, self._here)


def _known_by(record: RequestRecord) -> str:
    if record.token_ids is not None:
        return "tokens"
    if record.hash_ids is None:
        return "length"
    return "hash_ids" if record.num_named_tokens <= record.prompt_tokens else "hash_ids_with_outputs"
