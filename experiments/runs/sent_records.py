"""What replicas are sent."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.experiments.misses.sources import MissSources
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
        self.one_cache = OneCache([server.scheduler.config for server in servers])

    def add(self, replica: int, sent: RequestRecord, _record: RequestRecord) -> None:
        """See :data:`~kvtwin.sim.cluster.cluster.Sent`."""
        self.counts[replica] += 1
        if not self._servers[replica].refusal(sent):
            self.one_cache.add(sent, self._misses[replica].chain_of)
        if self._keeps_records:
            self.records[replica].append(sent)
