"""From a workload's records to the engine's requests."""

from __future__ import annotations

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import Content, KeySpace, OpaqueContent, TokenContent
from kvtwin.engine.prefix_id_content import PrefixIdContent
from kvtwin.engine.request import Request
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord

EOS_TOKEN = -2
"""Stands for the end-of-sequence token of a simulated output; no real token id is negative."""


def sample_ids(record: RequestRecord) -> list[str]:
    """The ids of the engine's requests for ``record``, as vLLM makes them."""
    return [record.request_id] if record.n == 1 else [f"{index}_{record.request_id}" for index in range(record.n)]


class RequestFactory:
    """Makes engine requests; equal prefixes of different records get equal block keys.

    ``ignore_eos`` makes the output length a limit that every request reaches, as ``vllm bench serve --ignore-eos``
    does. Without it the limit is whatever ``max_model_len`` allows and the output ends with an EOS token, which
    asynchronous scheduling notices one step late.
    """

    def __init__(self, keys: KeySpace, max_model_len: int, *, ignore_eos: bool, encoder_cache_size: int = 0) -> None:
        self._keys = keys
        self._max_model_len = max_model_len
        self._encoder_cache_size = encoder_cache_size
        self._ignore_eos = ignore_eos
        self._loras: dict[str, LoraAdapter] = {}
        self._last_stamp_ns = -1

    def refusal(self, record: RequestRecord) -> str | None:
        """Why vLLM's front end would refuse the record (specification, section 14.1); None if it would not."""
        if record.output_tokens < 1:
            return "zero output"
        if record.prompt_tokens >= self._max_model_len:
            return "prompt >= max_model_len"
        most = self._encoder_cache_size
        if most and any(image.num_embeddings > most for image in _images(record)):
            return "image > encoder cache"
        return None

    def make(self, record: RequestRecord, arrival_ns: int) -> list[Request]:
        """The engine's requests for ``record``, sent at ``arrival_ns``: one per sample, as in vLLM.

        With several samples the first is the parent of the others. WorkloadError: another rank is asked for.
        """
        if record.data_parallel_rank:
            raise WorkloadError(record.source, f"data_parallel_rank: expected 0, got {record.data_parallel_rank}")
        stamp_ns = self.stamp(arrival_ns)
        first_id, *sibling_ids = sample_ids(record)
        parent = self._sample(record, first_id, stamp_ns)
        if record.n == 1:
            return [parent]
        num_keyed_tokens = record.prompt_tokens - self._keys.hash_lookahead_tokens
        parent.content.extend_keys(parent.block_keys, max(0, num_keyed_tokens) // self._keys.hash_block_size)
        siblings = [self._sample(record, sibling_id, stamp_ns, parent) for sibling_id in sibling_ids]
        for sibling in siblings:  # one prompt, also where nothing is known of it but its length
            sibling.block_keys += parent.block_keys
        return [parent, *siblings]

    def unsent(self, record: RequestRecord) -> Request:
        """A request for ``record`` that no server sees: to look up what is cached of it."""
        return self._sample(record, record.request_id, 0)

    def _sample(self, record: RequestRecord, request_id: str, stamp_ns: int, parent: Request | None = None) -> Request:
        room = self._max_model_len - record.prompt_tokens
        lora, images = self._lora(record.lora_name), _images(record)
        return Request(
            request_id,
            record.prompt_tokens,
            min(record.output_tokens, room) if self._ignore_eos else room,
            self._content(record, lora, images, knows_output=parent is None),
            arrival_ns=stamp_ns,
            priority=record.priority,
            lora=lora,
            images=images,
            eos_token_id=None if self._ignore_eos else EOS_TOKEN,
            session=record.session if parent is None else None,  # a conversation goes on from the first sample
            parent=parent,
        )

    def stamp(self, arrival_ns: int) -> int:
        """When the server notes the arrival: a server takes requests one by one, so no two get the same stamp."""
        self._last_stamp_ns = max(arrival_ns, self._last_stamp_ns + 1)
        return self._last_stamp_ns

    def _lora(self, name: str | None) -> LoraAdapter | None:
        if not name:
            return None
        if name not in self._loras:
            self._loras[name] = LoraAdapter(name, f"/loras/{name}", len(self._loras) + 1)
        return self._loras[name]

    def _content(
        self, record: RequestRecord, lora: LoraAdapter | None, images: tuple[Image, ...], *, knows_output: bool
    ) -> Content:
        if record.token_ids is not None:
            return TokenContent(self._keys, record.token_ids, lora, record.cache_salt, images)
        if record.hash_ids is not None:
            named = record.num_named_tokens if knows_output else min(record.num_named_tokens, record.prompt_tokens)
            ends = record.id_ends
            return PrefixIdContent(self._keys, named, record.hash_ids, ends, lora, record.cache_salt, images)
        return OpaqueContent(self._keys)


def _images(record: RequestRecord) -> tuple[Image, ...]:
    if not record.images:
        return ()
    return tuple(
        Image(span.content_hash, span.offset_tokens, span.length_tokens, span.text_positions) for span in record.images
    )
