"""An infinite prefix cache: what could be hit of a workload if nothing were ever evicted."""

from __future__ import annotations

from kvtwin.workloads.prefixes.chains import Chain


class InfiniteCache:
    """A prefix cache that never evicts."""

    def __init__(self) -> None:
        self._blocks_of: dict[int, int] = {}
        """Most blocks of each run that any request had."""

    def add(self, chain: Chain) -> int:
        """Look ``chain`` up, then store it; return how many leading full blocks of its prompt were there."""
        blocks_of = self._blocks_of
        num_seen, leads = 0, True
        for name, count in chain.runs:
            known = blocks_of.get(name, 0)
            if leads:
                num_seen += min(known, count)
                leads = known >= count
            if count > known:
                blocks_of[name] = count
        return min(num_seen, chain.num_prompt_blocks)
