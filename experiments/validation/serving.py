"""The servers of a validation at work: one, or replicas behind their router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvtwin.engine.executor import Executor
from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.runs.sent_records import SentRecords
from kvtwin.experiments.setup.replicas import cluster_of, has_replicas
from kvtwin.experiments.validation.settings import Setting
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord


class Serving:
    """The servers of a setting, each on an executor of its own."""

    def __init__(
        self, setting: Setting, executors: Sequence[Executor[Any]], on_progress: Callable[[int], None] | None = None
    ) -> None:
        """``on_progress`` gets the number of finished requests. UserError: a router that cannot be."""
        tree = PrefixTree()
        self.misses = [MissSources(server.config, tree) for server in setting.servers]
        self.sent: SentRecords | None = None
        """What a router sent; None: there is none."""
        self._sent_as: dict[int, RequestRecord] = {}
        whole: ServerSimulation | Cluster
        concurrency = setting.load.max_concurrency
        if has_replicas(setting.options):
            clock = Clock()
            self.simulations = [
                server.simulation(executor, clock=clock)
                for server, executor in zip(setting.servers, executors, strict=True)
            ]
            self.sent = SentRecords(self.simulations, self.misses, keeps_records=False)
            whole = cluster_of(
                setting.options,
                clock,
                self.simulations,
                max_concurrency=concurrency,
                on_progress=on_progress,
                on_sent=self._note,
            )
        else:
            whole = setting.servers[0].simulation(executors[0], max_concurrency=concurrency, on_progress=on_progress)
            self.simulations = [whole]
        for simulation, misses in zip(self.simulations, self.misses, strict=True):
            simulation.observers.append(misses)
        self.run, self.close = whole.run, whole.close

    def served_as(self, record: RequestRecord) -> RequestRecord:
        """What a server got for ``record``, or would have got."""
        return self._sent_as.get(id(record), record)

    def _note(self, replica: int, sent: RequestRecord, record: RequestRecord) -> None:
        assert self.sent is not None
        self.sent.add(replica, sent, record)
        self._sent_as[id(record)] = sent
