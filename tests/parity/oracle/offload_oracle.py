"""The oracle with the real ``OffloadingConnector``; its worker is faked (lagging_worker.py).

Configurations have ``connector``: ``{"kind": "native", "num_chunks", "blocks_per_chunk", "eviction_policy",
"store_threshold", "max_tracker_size", "sync_load_budget_tokens", "offload_prompt_only", "lags"}``. Records then have
``offload`` of a step: its loads [job, request, is synchronous, blocks, chunks], stores [job, request, blocks, chunks]
and flushes; and ``chunks``: [place, readers] of all that the host holds.

Faked besides: the size of the host is set in chunks, that of the synchronous budget in tokens; requests that ended
since the last step are looked at in the order in which they ended (vLLM has a set of ids).
"""

from __future__ import annotations

from typing import Any

from tests.parity.oracle.connector_oracle import ConnectorOracle
from tests.parity.oracle.lagging_worker import LaggingWorker


class OffloadOracle(ConnectorOracle):
    """Drives the real scheduler with native offloading."""

    def transfer_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        extra = {"cpu_bytes_to_use": 1 << 20, "max_tracker_size": settings["max_tracker_size"]}
        for name in ("blocks_per_chunk", "eviction_policy", "store_threshold", "offload_prompt_only"):
            extra[name] = settings[name]
        return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def make_transfers(self, lines: list[dict[str, Any]]) -> LaggingWorker:
        settings = self.cfg["connector"]
        self.offloading = self.sched.connector.connector_scheduler
        self.store = self.offloading.manager
        self.store._num_chunks = settings["num_chunks"]
        self.store._policy.__init__(cache_capacity=settings["num_chunks"])
        per_token = self.offloading.config.kv_bytes_per_token
        self.offloading.config = self.offloading.config._replace(
            sync_load_budget_bytes=settings["sync_load_budget_tokens"] * per_token
        )
        self._keep_order_of_ends()
        return LaggingWorker(list(settings["lags"]))

    def _keep_order_of_ends(self) -> None:
        ended: list[str] = []
        finished, build = self.offloading.request_finished, self.offloading.build_connector_meta

        def request_finished(request: Any) -> Any:
            ended.append(request.request_id)
            return finished(request)

        def build_connector_meta(so: Any) -> Any:
            names = so.finished_req_ids
            so.finished_req_ids = [name for name in ended if name in names]
            ended.clear()
            meta = build(so)
            so.finished_req_ids = names
            return meta

        self.offloading.request_finished = request_finished
        self.offloading.build_connector_meta = build_connector_meta

    def _work(self, so: Any) -> dict[str, Any]:
        meta = so.kv_connector_metadata

        def numbers(spec: Any) -> list[int]:
            return [int(number) for number in spec.block_ids]

        return {
            "loads": [
                [job, one.req_id, one.sync, numbers(one.dst_spec), numbers(one.src_spec)]
                for job, one in meta.load_jobs.items()
            ],
            "stores": [
                [job, one.req_id, numbers(one.src_spec), numbers(one.dst_spec)] for job, one in meta.store_jobs.items()
            ],
            "flushes": sorted(meta.jobs_to_flush or ()),
        }

    def log_schedule(self, rec: dict[str, Any], so: Any) -> None:
        super().log_schedule(rec, so)
        rec["offload"] = self._work(so)

    def carry_out(self, so: Any) -> dict[str, Any]:
        return self.transfers.carry_out(**self._work(so)) | {"sent": [], "invalid_blocks": [], "failed": []}

    def model_output(self, so: Any, result: dict[str, Any]) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        output = super().model_output(so, result)
        jobs = dict.fromkeys(self.reports[id(so)]["jobs"], 1)
        output.kv_connector_output.kv_connector_worker_meta = OffloadingWorkerMetadata(completed_jobs=jobs)
        return output

    def log_state(self, rec: dict[str, Any]) -> None:
        super().log_state(rec)
        policy = self.store._policy
        chunks = policy.chunks if hasattr(policy, "chunks") else {**policy.t1, **policy.t2}
        rec["chunks"] = sorted([chunk.chunk_id, chunk.ref_cnt] for chunk in chunks.values())
