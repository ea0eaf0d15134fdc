"""A parity case with a KV connector, through our engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.connected_scheduler import ConnectedScheduler
from kvtwin.engine.connectors.connector import Connector, ConnectorRole, RemoteMatch, Transfers
from kvtwin.engine.executor import Step
from kvtwin.engine.request import BlockTables, FinishReason, Request
from tests.parity.oracle.planned_transfers import PlannedTransfers


class PlannedConnector(Connector):
    """Answers what its plans say."""

    def __init__(self, role: ConnectorRole, transfers: PlannedTransfers) -> None:
        self.role = role
        self._transfers = transfers

    def match(self, request: Request, num_local_tokens: int) -> RemoteMatch | None:
        found = self._transfers.match(request.request_id, num_local_tokens)
        return found and RemoteMatch(*found)

    def allocated(self, request: Request, block_tables: BlockTables, num_remote_tokens: int) -> None:
        self._transfers.allocated(request.request_id, block_tables[0], num_remote_tokens)

    def finished(self, request: Request, block_tables: BlockTables) -> bool:
        by_itself = request.finish_reason in (FinishReason.LENGTH, FinishReason.STOP)
        return self._transfers.finished(request.request_id, block_tables, by_itself=by_itself)


class ConnectedCase:
    """The part of a case run that concerns its connector."""

    def __init__(self, settings: dict[str, str], transfers: PlannedTransfers) -> None:
        self._settings = settings
        self._transfers = transfers
        self._reports: dict[int, dict[str, Any]] = {}
        self._spoilt: set[str] = set()

    def make_connector(self, config: EngineConfig) -> Connector:
        return PlannedConnector(ConnectorRole(self._settings["role"]), self._transfers)

    def make_scheduler(self, config: EngineConfig) -> ConnectedScheduler:
        recomputes = self._settings.get("kv_load_failure_policy") == "recompute"
        self.scheduler = ConnectedScheduler(config, self.make_connector(config), recomputes_failed_loads=recomputes)
        self.note_statistics()
        return self.scheduler

    def carry_out(self, step: Step, emitted: dict[str, int]) -> None:
        for request in step.requests:
            if request.request_id in self._spoilt:
                self._spoilt.discard(request.request_id)
                emitted[request.request_id] = request.num_output_tokens
        self._reports[step.index] = self._transfers.carry_out()

    def report(self, step: Step) -> dict[str, Any]:
        report = self._reports.pop(step.index)
        self.scheduler.report(Transfers(**report | {"invalid_blocks": set(report["invalid_blocks"])}))
        config = self.scheduler.config
        if report["invalid_blocks"] and not config.async_scheduling and not config.speculation:
            self._spoilt.update(request.request_id for request in step.requests)
        return report

    def log_state(self, record: dict[str, Any]) -> None:
        scheduler = self.scheduler
        holding = list(scheduler.waiting.holding)
        record["waiting"] = [request.request_id for request in [*scheduler.waiting.others, *holding]]
        record["loading"] = [[request.request_id, request.num_computed_tokens] for request in holding]
        record["kept"] = sorted(scheduler.kept)
        record["ended_tables"] = self._transfers.take_ended_tables()
        record["external"] = dict(self._external)

    def note_statistics(self) -> None:
        """As of a step whose result was processed, which is when vLLM tells them."""
        self._external = asdict(self.scheduler.statistics.external_prefix_cache)
        del self._external["requests_with_hit"]

    def log_schedule(self, step: Step, record: dict[str, Any]) -> None:
        """Plans order nothing."""
