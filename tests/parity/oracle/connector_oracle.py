"""The oracle with a KV connector that follows plans: the real scheduler, asking the connector beside this file.

Configurations have one key more, ``connector``: null, or ``{"role": "kv_both", "kv_load_failure_policy": "fail"}``;
requests have a ``plan`` (planned_transfers.py). Records then have ``transfers`` (what was reported with the result that
was processed), ``loading`` [id, computed tokens] of requests that hold blocks and wait, ``kept`` [id] of requests that
ended and hold blocks, and ``external``, the connector's prefix cache statistics.

Faked besides: requests that end because of failed loads end in the order of their ids (vLLM has a set).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.parity.oracle import vllm_oracle
from tests.parity.oracle.image_oracle import DEFAULT_CONFIG as WITHOUT_CONNECTOR
from tests.parity.oracle.image_oracle import ImageOracle
from tests.parity.oracle.planned_transfers import planned_transfers

DEFAULT_CONFIG: dict[str, Any] = WITHOUT_CONNECTOR | {"connector": None}


class ConnectorOracle(ImageOracle):
    """Drives the real scheduler with a connector, where the case has one."""

    def __init__(self, cfg: dict[str, Any], workload: Iterable[dict[str, Any]]) -> None:
        lines = list(workload)
        settings = cfg.get("connector")
        rest = {name: value for name, value in cfg.items() if name != "connector"}
        self.transfers: Any = None
        if not settings:
            super().__init__(rest, lines)
            self.cfg["connector"] = None
            return
        V = vllm_oracle.import_vllm()  # noqa: N806
        from vllm.config import KVTransferConfig

        transfer = KVTransferConfig(kv_buffer_device="cpu", engine_id="e0", **self.transfer_settings(settings))
        original = V.VllmConfig
        V.VllmConfig = lambda **named: original(**named, kv_transfer_config=transfer)
        try:
            super().__init__(rest, lines)
        finally:
            V.VllmConfig = original
        self.cfg["connector"] = settings
        self.transfers = self.make_transfers(lines)
        self.reports: dict[int, dict[str, Any]] = {}
        self.external = dict.fromkeys(self.stat, 0)
        self._spoilt: set[str] = set()
        self.delivers_all = False
        self._end_failed_in_order()

    def transfer_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What vLLM is told of the connector."""
        return {
            "kv_connector": "PlannedConnector",
            "kv_connector_module_path": "tests.parity.oracle.planned_connector",
            "kv_role": settings["role"],
            "kv_load_failure_policy": settings["kv_load_failure_policy"],
        }

    def make_transfers(self, lines: list[dict[str, Any]]) -> Any:
        """What carries transfers out, once the scheduler is there."""
        self.sched.connector.transfers = planned_transfers(self.cfg, lines)
        return self.sched.connector.transfers

    def carry_out(self, so: Any) -> dict[str, Any]:
        """What is reported with the result of a step that was just decided."""
        return self.transfers.carry_out()

    def _end_failed_in_order(self) -> None:
        noticed = self.sched.encoder_cache_mismatch_reqs
        finish = type(self.sched).finish_requests

        def finish_in_order(ids: Any, status: Any) -> list[Any]:
            if status is not self.V.RequestStatus.FINISHED_ERROR or isinstance(ids, str):
                return finish(self.sched, ids, status)
            images = [name for name in getattr(noticed, "order", ()) if name in ids]
            getattr(noticed, "order", []).clear()
            names = dict.fromkeys([*images, *sorted(ids)])
            return [request for name in names for request in finish(self.sched, name, status)]

        self.sched.finish_requests = finish_in_order

    def execute(self, so: Any) -> dict[str, Any]:
        if self.transfers is None:
            return super().execute(so)
        for name in so.num_scheduled_tokens:
            if name in self._spoilt:  # its output was dropped: the model computes it again
                self._spoilt.discard(name)
                self.emitted[name] = self.sched.requests[name].num_output_tokens
        self.reports[id(so)] = self.carry_out(so)
        return super().execute(so)

    def model_output(self, so: Any, result: dict[str, Any]) -> Any:
        output = super().model_output(so, result)
        if self.transfers is not None:
            from vllm.v1.outputs import KVConnectorOutput

            report = self.reports[id(so)]
            output.kv_connector_output = KVConnectorOutput(
                finished_recving=report["received"],
                finished_sending=report["sent"],
                invalid_block_ids=set(report["invalid_blocks"]),
            )
            output.kv_connector_output.failed_recving = report["failed"]
            if report["invalid_blocks"] and not self.cfg["async_scheduling"] and not self.k_spec:
                self._spoilt.update(so.num_scheduled_tokens)
        return output

    def log_update(self, rec: dict[str, Any], so: Any, result: dict[str, Any], eco: Any, processed_step: int) -> None:
        super().log_update(rec, so, result, eco, processed_step)
        if self.transfers is None:
            return
        rec["transfers"] = self.reports.pop(id(so))
        for outputs in eco.values():
            stats = outputs.scheduler_stats
            if stats is not None and stats.connector_prefix_cache_stats is not None:
                for name in self.external:
                    self.external[name] += getattr(stats.connector_prefix_cache_stats, name)

    def log_state(self, rec: dict[str, Any]) -> None:
        super().log_state(rec)
        if self.transfers is None:
            return
        holding = list(self.sched.kv_holding_waiting)
        rec["loading"] = [[request.request_id, request.num_computed_tokens] for request in holding]
        rec["kept"] = sorted(name for name, request in self.sched.requests.items() if request.is_finished())
        rec["ended_tables"] = self.transfers.take_ended_tables()
        rec["external"] = dict(self.external)
