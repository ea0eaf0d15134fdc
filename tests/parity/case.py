"""A parity case: a workload and a configuration in the oracle's format, run through our engine.

:func:`run_case` yields one record per engine iteration with the oracle's field names, so that logs can be compared
field by field. See oracle/README.md for the formats; what they mean (seeded tokens, the fake model's outputs, defaults
of a configuration) is asked of the oracle's program, which imports vLLM only when it drives it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.invariants import ConnectedInvariantChecker
from kvtwin.engine.core import EngineCore
from kvtwin.engine.encoder_cache import EncoderCache
from kvtwin.engine.executor import Step
from kvtwin.engine.invariants import InvariantChecker
from kvtwin.engine.kv_events import KVEvent
from kvtwin.engine.prefill_pacing import CommonPrefillPacing
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.engine.speculation import Speculation
from tests.parity.connected_case import ConnectedCase
from tests.parity.offloaded_case import OffloadedCase
from tests.parity.oracle import vllm_oracle
from tests.parity.oracle.connector_oracle import DEFAULT_CONFIG
from tests.parity.oracle.image_oracle import IMAGE_DEFAULTS
from tests.parity.oracle.planned_transfers import planned_transfers

SAME_NAMES = (
    "num_blocks",
    "prefix_match_unit",
    "max_model_len",
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "watermark",
    "scheduler_reserve_full_isl",
    "prefill_schedule_interval",
    "async_scheduling",
    *IMAGE_DEFAULTS,
)
"""Settings that the oracle and our engine call alike."""


class UnsupportedCaseError(Exception):
    """The case needs something that the engine does not model yet; the message names it."""


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a ``.jsonl`` or ``.jsonl.gz`` file; ``#`` lines are comments."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


_KINDS = {
    "full": ("full_attention", None),
    "sliding_window": ("sliding_window", "sliding_window"),
    "chunked_local": ("chunked_local_attention", "attention_chunk_size"),
    "mamba": ("mamba", None),
}
"""Our name and the oracle's key of the window, by the oracle's kind of cache group."""


def _group_spec(group: dict[str, Any], block_size: int) -> CacheGroupSpec:
    kind = group.get("type", "full")
    if kind not in _KINDS:
        raise UnsupportedCaseError(f"cache groups of kind {kind}")
    name, window = _KINDS[kind]
    return CacheGroupSpec(
        name,
        group.get("block_size", block_size),
        group[window] if window else None,
        bool(group.get("eagle")),
        *(group.get(key) or 0 for key in ("num_speculative_blocks", "num_prefill_checkpoint_blocks")),
        group.get("prefill_checkpoint_alignment"),
    )


def _speculation(case: dict[str, Any]) -> Speculation | None:
    if not case["num_speculative_tokens"]:
        return None
    return Speculation(
        method=case["spec_method"],
        num_speculative_tokens=case["num_speculative_tokens"],
        num_nextn_predict_layers=case["num_nextn_predict_layers"],
        disable_lookahead_block_hashes=case["disable_lookahead_block_hashes"],
        disable_eagle_block_drop=case["disable_eagle_block_drop"],
    )


def engine_config(case: dict[str, Any], num_loras: int) -> EngineConfig:
    """Our configuration for the oracle's, which must be complete. Raises UnsupportedCaseError."""
    specs = [_group_spec(group, case["block_size"]) for group in case["groups"] or [{"type": "full"}]]
    max_loras = case["max_loras"] if case["max_loras"] is not None else num_loras
    try:
        return EngineConfig(
            **{name: case[name] for name in SAME_NAMES},
            block_size=specs[0].block_size,
            cache_groups=tuple(specs),
            prefix_cache_retention_interval=case["prefix_cache_retention_interval"],
            prefix_caching_hash_algo=case["hash_algo"],
            hash_seed=case["none_hash_seed"],
            scheduling_policy=case["policy"],
            enable_kv_cache_events=case["kv_events"],
            max_loras=max_loras,
            speculation=_speculation(case),
            vllm_strict=True,
        )
    except ValueError as error:
        raise UnsupportedCaseError(str(error)) from None


PADDING = -1
"""A draft whose token the scheduler does not know: padding, or any draft with asynchronous scheduling."""


@dataclass
class _Sampler:
    """The fake model: decides, when a step is scheduled, what it will return, and makes drafts."""

    vocabulary: int
    num_drafts: int
    is_async: bool
    forced: dict[str, list[int]] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)

    def verified(self, step: Step) -> list[list[Any]]:
        """The drafts that the scheduler sends with the step, by request."""
        admitted = {admission.request for admission in step.admitted}
        return [
            [
                request.request_id,
                [PADDING] * number
                if self.is_async or request in admitted
                else self.drafts[request.request_id][:number],
            ]
            for request, number in step.num_drafts.items()
        ]

    def sample(self, step: Step) -> list[list[int]]:
        """Output tokens per request of the step."""
        admitted = {admission.request.request_id for admission in step.admitted}
        for admission in step.admitted:
            self.emitted[admission.request.request_id] = admission.request.num_output_tokens
        return [
            self._outputs(request.request_id, step.num_drafts.get(request, 0), request.request_id in admitted)
            if samples
            else []
            for request, samples in zip(step.requests, step.samples, strict=True)
        ]

    def _outputs(self, request_id: str, num_drafts: int, is_padding: bool) -> list[int]:
        first = self.emitted[request_id]
        num_right = vllm_oracle.accepted_drafts(request_id, first - 1, self.num_drafts)
        end = first + 1 + (0 if is_padding else min(num_right, num_drafts))
        self.emitted[request_id] = end
        if self.num_drafts:
            right = vllm_oracle.accepted_drafts(request_id, end - 1, self.num_drafts)
            self.drafts[request_id] = [
                (self._token(request_id, end + index) + (index >= right)) % self.vocabulary
                for index in range(self.num_drafts)
            ]
        return [self._token(request_id, index) for index in range(first, end)]

    def _token(self, request_id: str, index: int) -> int:
        forced = self.forced[request_id]
        return forced[index] if index < len(forced) else vllm_oracle.output_token(request_id, index, self.vocabulary)


def make_connected_case(case: dict[str, Any], lines: list[dict[str, Any]]) -> ConnectedCase | None:
    """None for a case without a connector."""
    settings = case["connector"]
    if not settings:
        return None
    if settings.get("kind") == "native":
        return OffloadedCase(settings)
    return ConnectedCase(settings, planned_transfers(case, lines))


class CaseRun:
    """Drives the engine through one case, as the oracle drives vLLM."""

    def __init__(self, case: dict[str, Any], lines: list[dict[str, Any]], *, check: bool = False) -> None:
        self.case = DEFAULT_CONFIG | case
        self.lora_numbers: dict[str, int] = {}
        for line in lines:
            if line.get("lora"):
                self.lora_numbers.setdefault(line["lora"], len(self.lora_numbers) + 1)
        config = engine_config(self.case, len(self.lora_numbers))
        self.connected = make_connected_case(self.case, lines)
        self.scheduler = self.connected.make_scheduler(config) if self.connected else Scheduler(config)
        self.core = EngineCore(self.scheduler)
        if self.case["common_prefill_interval"] > 1:
            steps = self.scheduler.statistics
            self.scheduler.pace_prefills(
                CommonPrefillPacing(self.case["common_prefill_interval"], lambda: steps.num_steps - 1)
            )
        self.checker = None
        if check:
            self.checker = (ConnectedInvariantChecker if self.connected else InvariantChecker)(self.scheduler)
        self.vocabulary = self.case["vocab"]
        self.sampler = _Sampler(self.vocabulary, self.case["num_speculative_tokens"], self.case["async_scheduling"])
        order = sorted(enumerate(lines), key=lambda entry: (_step_of(entry[1]), entry[0]))
        self.events = order[::-1]
        self.admitted: set[str] = set()
        """Ids that were ever admitted: the log calls any further admission a resumption, also of an id used anew."""
        self.sampled: dict[int, list[list[int]]] = {}
        self.step_numbers: dict[int, int] = {}
        self.prefix = self._prefix_now()

    def run(self) -> Iterator[dict[str, Any]]:
        """One record per iteration."""
        number = idle = iterations = 0
        while iterations < self.case["max_steps"]:
            if not self.core.has_work():
                if not self.events:
                    return
                number = max(number, _step_of(self.events[-1][1]))
            record: dict[str, Any] = {"step": number}
            self._apply_events(number, record)
            executed = self._iterate(number, record)
            self._log_state(record)
            number += 1
            if not self.case["async_scheduling"] and "scheduled" not in record:
                yield record
                continue
            iterations += 1
            busy = executed or any(step.total_tokens for step in self.core.in_flight)
            idle = 0 if busy else idle + 1
            if idle >= self.case["stall_steps"] and not self.events:
                yield record | {"stalled": True}
                return
            yield record

    def _iterate(self, number: int, record: dict[str, Any]) -> bool:
        step = self.core.schedule_next()
        if step is not None:
            self.step_numbers[step.index] = number
            self._log_schedule(step, record)
            if self.connected:
                self.connected.log_schedule(step, record)
                self.connected.carry_out(step, self.sampler.emitted)
            self.sampled[step.index] = self.sampler.sample(step)
            if self.checker:
                self.checker.check_step(step)
        if self.core.must_collect():
            index = self.core.in_flight[0].index
            before = {id(request): request.num_output_tokens for request in self.core.in_flight[0].requests}
            tokens = self.sampled.pop(index)
            if self.connected:
                record["transfers"] = self.connected.report(self.core.in_flight[0])
            done = self.core.process(tokens, [self.sampler.num_drafts * bool(token_ids) for token_ids in tokens])
            self._log_update(done, before, record)
        if self.checker:
            self.checker.check()
        return step is not None and step.total_tokens > 0

    def _apply_events(self, number: int, record: dict[str, Any]) -> None:
        while self.events and _step_of(self.events[-1][1]) <= number:
            index, line = self.events.pop()
            operation = line.get("op", "add")
            if operation == "add":
                self.scheduler.add_request(self._make_request(index, line))
                record.setdefault("added", []).append(str(line["id"]))
            elif operation == "abort":
                aborted = self.scheduler.abort(str(line["id"]))
                record.setdefault("aborted", []).extend([aborted.request_id] if aborted else [])
            elif operation == "reset_prefix_cache":
                record["reset_prefix_cache"] = self.scheduler.reset_prefix_cache(
                    reset_running_requests=bool(line.get("reset_running_requests"))
                )
            else:
                raise ValueError(f"unknown op {operation}")

    def _make_request(self, index: int, line: dict[str, Any]) -> Request:
        request_id = str(line["id"])
        tokens = vllm_oracle.expand_prompt(line, self.vocabulary)
        name = line.get("lora")
        lora = LoraAdapter(name, f"/loras/{name}", self.lora_numbers[name]) if name else None
        self.sampler.forced[request_id] = [int(token) for token in line.get("output_token_ids") or ()]
        arrival_s = float(_step_of(line))
        if "arrival_time" in line:
            arrival_s = float(line["arrival_time"])
        elif self.case["arrival_time"] == "unique":
            arrival_s += index * 1e-6
        images = [_image(image) for image in line.get("images", ())]
        return Request(
            request_id,
            len(tokens),
            int(line["output_len"]),
            TokenContent(self.scheduler.keys, tokens, lora, line.get("cache_salt"), images),
            arrival_ns=_in_order(arrival_s),
            priority=int(line.get("priority", 0)),
            lora=lora,
            images=tuple(images),
            eos_token_id=line.get("eos_token_id"),
            stop_token_ids=frozenset(line.get("stop_token_ids", ())),
        )

    # ---------------------------------------------------------------- the log

    def _log_schedule(self, step: Step, record: dict[str, Any]) -> None:
        record["scheduled"] = [
            [request.request_id, count] for request, count in zip(step.requests, step.num_tokens, strict=True)
        ]
        record["admitted"] = [
            {
                "id": admission.request.request_id,
                "num_computed_tokens": admission.num_hit_tokens,
                "block_ids": admission.block_tables,
                "resumed": admission.request.request_id in self.admitted,
            }
            for admission in step.admitted
        ]
        self.admitted.update(admission.request.request_id for admission in step.admitted)
        record["running_new_blocks"] = [[request.request_id, tables] for request, tables in step.new_blocks]
        if step.num_drafts:
            record["spec"] = self.sampler.verified(step)
        if step.copies:
            record["cow_copies"] = [[copy.source, copy.destination] for copy in step.copies]
        record["preempted"] = [request.request_id for request in step.preempted]
        if self.case["log_hashes"] and step.admitted:
            record["hashes"] = {
                admission.request.request_id: self._hashes(admission.request) for admission in step.admitted
            }
        if self.case["log_tables"]:
            record["tables"] = {request.request_id: request.block_tables for request in self.scheduler.running}
            record["tables"] = json.loads(json.dumps(record["tables"]))
        record["free_after_schedule"] = self.scheduler.kv_cache.pool.num_free_blocks
        self._log_free_queue("free_queue_after_schedule", record)
        if self.case["encoder_cache_size"]:
            encodes = [[request.request_id, positions] for request, positions in step.images.items()]
            record["encoder"] = {"encodes": encodes, "dropped": step.dropped_images}

    def _hashes(self, request: Request) -> list[str]:
        if not self.scheduler.config.enable_prefix_caching:
            return []
        keys = list(request.block_keys)
        num_tokens = request.num_tokens - self.scheduler.config.hash_lookahead_tokens
        request.content.extend_keys(keys, num_tokens // self.scheduler.config.hash_block_size)
        hashes = [self.scheduler.keys.hash_of_key(key) for key in keys]
        return [value.hex() for value in hashes if value is not None]

    def _log_update(self, step: Step, before: dict[int, int], record: dict[str, Any]) -> None:
        if self.step_numbers[step.index] != record["step"]:
            record["processed_step"] = self.step_numbers.pop(step.index)
        ended = self.scheduler.take_ended()
        sampled = []
        for request in step.requests:
            delivered = request.num_output_tokens - before[id(request)]
            if delivered:
                end = request.num_tokens
                sampled.append([request.request_id, request.content.token_ids(end - delivered, end)])
        record["sampled"] = sampled
        in_step = {id(request) for request in step.requests}
        record["finished"] = [
            [request.request_id, str(request.finish_reason)]
            for request in ended
            if id(request) in in_step and request.finish_reason not in ("abort", "error")
        ]
        record["finished"] += [[one.request_id, "error"] for one in ended if one.finish_reason == "error"]
        self.prefix = self._prefix_now()
        if self.connected:
            self.connected.note_statistics()
        if self.case["kv_events"]:
            record["kv_events"] = [event_to_json(event) for event in self.scheduler.kv_cache.events.take()]

    def _log_state(self, record: dict[str, Any]) -> None:
        pool = self.scheduler.kv_cache.pool
        record["running"] = [request.request_id for request in self.scheduler.running]
        record["waiting"] = [request.request_id for request in self.scheduler.waiting]
        record["free_blocks"] = pool.num_free_blocks
        self._log_free_queue("free_queue", record)
        record["map_entries"] = pool.num_cached_keys
        record["hashed_blocks"] = pool.num_hashed_blocks
        record["prefix"] = dict(self.prefix)
        if self.case["kv_events"]:
            record.setdefault("kv_events", [])
        if self.connected:
            self.connected.log_state(record)
        if isinstance(encoder := self.scheduler.encoder, EncoderCache):
            record["encoder_cache"] = {
                "free": encoder.num_free,
                "reclaimable": encoder.num_reclaimable,
                "evictable": list(encoder.evictable),
                "holders": {
                    name: sorted(request.request_id for request in holders)
                    for name, holders in sorted(encoder.holders.items())
                },
            }

    def _log_free_queue(self, field: str, record: dict[str, Any]) -> None:
        mode = self.case["log_free_queue"]
        if mode == "none":
            return
        queue = self.scheduler.kv_cache.pool.free_queue()
        data = b"".join(block.to_bytes(4, "little") for block in queue)
        record[field] = queue if mode == "full" else zlib.crc32(data)

    def _prefix_now(self) -> dict[str, int]:
        counts = asdict(self.scheduler.statistics.prefix_cache)
        del counts["requests_with_hit"]
        return counts


def _image(image: dict[str, Any]) -> Image:
    return Image(image["hash"], image["offset_tokens"], image["length_tokens"], tuple(image.get("text_positions", ())))


def event_to_json(event: KVEvent) -> dict[str, Any]:
    """A KV event as the oracle logs it."""
    return json.loads(json.dumps({"type": type(event).__name__} | asdict(event)))


def _in_order(seconds: float) -> int:
    """A whole number for each float, in the order of the floats, of which vLLM notices the last bit."""
    numerator, denominator = seconds.as_integer_ratio()
    return numerator * (2**1074 // denominator)


def _step_of(line: dict[str, Any]) -> int:
    return int(line.get("arrival_step", line.get("step", 0)))


def run_case(case: dict[str, Any], lines: list[dict[str, Any]], *, check: bool = False) -> Iterator[dict[str, Any]]:
    """Log records of our engine for a case. Raises UnsupportedCaseError."""
    return CaseRun(case, lines, check=check).run()
