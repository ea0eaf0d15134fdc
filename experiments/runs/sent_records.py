"""What replicas are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.runs.routed_prefixes import RoutedPrefixes
from kvtwin.experiments.runs.routing_figures import OneCache
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord


class SentRecords:
    """Takes note of each record that a router sends to one of ``servers``, which ``misses`` watch."""

    def __init__(
        self, servers: Sequence[ServerSimulation], misses: Sequence[MissSources], *, keeps_records: bool
    ) -> None:
        self._servers = servers
        self._misses = misses
        self._keeps_records = keeps_records
        self.counts = [0] * len(servers)
        self.records: list[list[RequestRecord]] = [[] for _ in servers]
        """Of each server, as it got them, if they are kept."""
        self._one_cache = OneCache([server.scheduler.config for server in servers])
        self._prefixes = RoutedPrefixes(len(servers), servers[0].scheduler.config.block_size)

    def add(self, replica: int, sent: RequestRecord, _record: RequestRecord) -> None:
        """See :data:`~kvtwin.sim.cluster.cluster.Sent`."""
        self.counts[replica] += 1
        if self._one_cache.is_known and not self._servers[replica].refusal(sent):
            chain = self._misses[replica].chain_of(sent)
            self._one_cache.add(sent, chain)
            self._prefixes.add(replica, chain, sent.request_id)
        if self._keeps_records:
            self.records[replica].append(sent)

    def figures(self) -> dict[str, Any]:
        """A bound for hits, and which prefixes went where."""
        return self._one_cache.figures() | self._prefixes.figures()
