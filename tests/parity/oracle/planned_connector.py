"""A KV connector of vLLM's, scheduler side, that answers what its plans say."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.v1.request import RequestStatus


class _Nothing(KVConnectorMetadata):
    pass


class PlannedConnector(KVConnectorBase_V1, SupportsHMA):
    transfers: Any = None

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        found = self.transfers.match(request.request_id, num_computed_tokens)
        return (None, False) if found is None else found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        table = [block.block_id for block in blocks.blocks[0]]
        self.transfers.allocated(request.request_id, table, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return _Nothing()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        by_itself = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        return self.transfers.finished(request.request_id, block_ids, by_itself=by_itself), None

    def start_load_kv(self, *arguments: Any, **named: Any) -> None: ...
    def wait_for_layer_load(self, *arguments: Any, **named: Any) -> None: ...
    def save_kv_layer(self, *arguments: Any, **named: Any) -> None: ...
    def wait_for_save(self, *arguments: Any, **named: Any) -> None: ...
