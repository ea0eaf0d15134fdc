"""A parity case with native offloading, through our engine; the worker is faked (oracle/lagging_worker.py)."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.native.connector import NativeOffloadingConnector, OffloadTransfers
from kvtwin.engine.connectors.native.invariants import check_offloading
from kvtwin.engine.connectors.native.settings import NativeOffloading
from kvtwin.engine.executor import Step
from tests.parity.connected_case import ConnectedCase
from tests.parity.oracle.lagging_worker import LaggingWorker


class OffloadedCase(ConnectedCase):
    """The part of a case run that concerns native offloading."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = {name: value for name, value in settings.items() if name not in ("kind", "lags")}
        self._transfers = LaggingWorker(list(settings["lags"]))
        self._reports: dict[int, dict[str, Any]] = {}

    def make_connector(self, config: EngineConfig) -> NativeOffloadingConnector:
        self._connector = NativeOffloadingConnector(
            NativeOffloading(**self._settings),
            block_size=config.block_size,
            hash_block_size=config.hash_block_size,
            caches_prefixes=config.enable_prefix_caching,
        )
        return self._connector

    def log_schedule(self, step: Step, record: dict[str, Any]) -> None:
        work = step.transfers
        record["offload"] = {
            "loads": [
                [job.index, job.request_id, job.is_sync, list(job.device_blocks), list(job.chunks)]
                for job in work.loads
            ],
            "stores": [[job.index, job.request_id, list(job.device_blocks), list(job.chunks)] for job in work.stores],
            "flushes": sorted(work.flushes),
        }

    def carry_out(self, step: Step, emitted: dict[str, int]) -> None:
        record: dict[str, Any] = {}
        self.log_schedule(step, record)
        self._reports[step.index] = self._transfers.carry_out(**record["offload"])

    def report(self, step: Step) -> dict[str, Any]:
        report = self._reports.pop(step.index)
        self.scheduler.report(OffloadTransfers(received=report["received"], jobs=report["jobs"]))
        return report | {"sent": [], "invalid_blocks": [], "failed": []}

    def log_state(self, record: dict[str, Any]) -> None:
        super().log_state(record)
        check_offloading(self._connector)
        chunks = self._connector.store.policy.chunks().values()
        record["chunks"] = sorted([chunk.index, chunk.num_readers] for chunk in chunks)
