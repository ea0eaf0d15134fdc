"""The oracle with images: ``vllm_oracle`` beside this file, and what it does not know of the encoder.

Configurations have three keys more (``IMAGE_DEFAULTS``), requests ``"images"``: a list of ``{"hash",
"offset_tokens", "length_tokens", "text_positions"?}`` in the order of the prompt, text positions counted from the
image's first token. Where there is an encoder, records have ``encoder``: ``encodes`` [[id, positions in its
images]] and ``dropped`` [hash] of the step; and ``encoder_cache`` after it: ``free`` and ``reclaimable``
embeddings, ``evictable`` [hash] in order, ``holders`` {hash: ids}.

Faked besides: the multimodal budget is given, not computed from a processor; requests with an image under the hash of
another one end in the order in which that was noticed. The encoder cache manager is vLLM's.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from tests.parity.oracle import vllm_oracle

IMAGE_DEFAULTS: dict[str, Any] = {
    "encoder_cache_size": 0,
    "max_num_encoder_input_tokens": None,
    "disable_chunked_mm_input": False,
}
DEFAULT_CONFIG = vllm_oracle.DEFAULT_CONFIG | IMAGE_DEFAULTS


class _Noticed(set[str]):
    """A set that remembers in which order it was filled, also when it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def add(self, name: str) -> None:
        if name not in self.order:
            self.order.append(name)
        super().add(name)


class ImageOracle(vllm_oracle.Oracle):
    """Drives the real scheduler through requests with images."""

    def __init__(self, cfg: dict[str, Any], workload: Iterable[dict[str, Any]]) -> None:
        own = IMAGE_DEFAULTS | {name: value for name, value in cfg.items() if name in IMAGE_DEFAULTS}
        super().__init__({name: value for name, value in cfg.items() if name not in own}, workload)
        self.cfg |= own
        if not own["encoder_cache_size"]:
            return
        from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

        size = own["encoder_cache_size"]
        default = max(self.cfg["max_num_batched_tokens"], size)
        self.sched.encoder_cache_manager = EncoderCacheManager(cache_size=size)
        self.sched.max_num_encoder_input_tokens = own["max_num_encoder_input_tokens"] or default
        self.sched.scheduler_config.disable_chunked_mm_input = own["disable_chunked_mm_input"]
        self._end_errors_in_order()
        self.V = types.SimpleNamespace(**vars(self.V))
        self._make_request = self.V.Request

    def _end_errors_in_order(self) -> None:
        """vLLM has the ids of requests that must end in a set, so their order changes from process to process."""
        noticed, finish = _Noticed(), self.sched.finish_requests

        def finish_in_order(ids: Any, status: Any) -> list[Any]:
            if status is not self.V.RequestStatus.FINISHED_ERROR:
                return finish(ids, status)
            done = [request for name in noticed.order if name in ids for request in finish(name, status)]
            noticed.order.clear()
            return done

        self.sched.encoder_cache_mismatch_reqs, self.sched.finish_requests = noticed, finish_in_order

    def make_request(self, idx: int, ln: dict[str, Any]) -> Any:
        if self.cfg["encoder_cache_size"]:
            features = [self._feature(image) for image in ln.get("images", ())]
            self.V.Request = lambda **named: self._make_request(mm_features=features, **named)
        return super().make_request(idx, ln)

    def _feature(self, image: dict[str, Any]) -> Any:
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

        length, mask = image["length_tokens"], None
        if image.get("text_positions"):
            mask = self.V.torch.ones(length, dtype=self.V.torch.bool)
            mask[image["text_positions"]] = False
        position = PlaceholderRange(offset=image["offset_tokens"], length=length, is_embed=mask)
        name = image["hash"].encode().decode()  # a string of its own, as in vLLM: pickle sees the difference
        return MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=position)

    def log_schedule(self, rec: dict[str, Any], so: Any) -> None:
        super().log_schedule(rec, so)
        if self.cfg["encoder_cache_size"]:
            inputs = so.scheduled_encoder_inputs.items()
            rec["encoder"] = {
                "encodes": [[name, list(positions)] for name, positions in inputs],
                "dropped": list(so.free_encoder_mm_hashes),
            }

    def log_state(self, rec: dict[str, Any]) -> None:
        super().log_state(rec)
        if self.cfg["encoder_cache_size"]:
            manager = self.sched.encoder_cache_manager
            rec["encoder_cache"] = {
                "free": manager.num_free_slots,
                "reclaimable": manager.num_freeable_slots,
                "evictable": list(manager.freeable),
                "holders": {name: sorted(ids) for name, ids in sorted(manager.cached.items())},
            }
