"""What a server left of a run, in a folder: requests with their times, and what else somebody saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.reading import read_served
from kvtwin.experiments.server_runs.served import ServedRequest
from kvtwin.experiments.server_validation.metrics_text import Metrics, counted_between

BEFORE, AFTER = "metrics-before.txt", "metrics-after.txt"
KV_EVENTS = ("kv_events.jsonl", "kv_events.msgpack")
META = "meta.json"

_CACHE = {"num_gpu_blocks": "num_gpu_blocks", "block_size": "block_size"}
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


class ServerRecord(NamedTuple):
    """What is known of a server's run."""

    served: list[ServedRequest]
    """In order of arrival."""
    counters: dict[str, int] | None
    """What ``/metrics`` counted during the run, by keys of a summary; None: nobody saved it."""
    limits: dict[str, int]
    """What the record says of the server: blocks, their size, and the most that it takes; those that it says."""
    kv_events: Path | None
    """The log of KV events."""


def read_server_record(folder: Path) -> ServerRecord:
    """Read a folder, or a record of requests alone. UserError: it lacks these, or a file is not what its name says."""
    served = read_served(folder)
    metrics = _metrics(folder)
    limits = _limits_of_meta(folder / META)
    for key, label in _CACHE.items():
        value = metrics.cache.get(label, "") if metrics else ""
        if value.isdecimal():
            limits[key] = int(value)
    events = [folder / name for name in KV_EVENTS if (folder / name).is_file()]
    if len(events) > 1:
        raise UserError(f"--server-run {folder}: has both {' and '.join(KV_EVENTS)}: save one of them")
    return ServerRecord(served, metrics.counters if metrics else None, limits, events[0] if events else None)


def _metrics(folder: Path) -> Metrics | None:
    before, after = folder / BEFORE, folder / AFTER
    if before.is_file() != after.is_file():
        present, absent = (BEFORE, AFTER) if before.is_file() else (AFTER, BEFORE)
        raise UserError(f"--server-run {folder}: has {present} without {absent}: counters say nothing alone")
    return counted_between(before, after) if after.is_file() else None


def _limits_of_meta(path: Path) -> dict[str, int]:
    """What LLMServingSim's bench saves beside ``requests.jsonl``; nothing where there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    found: dict[str, Any] = {}
    for key, names in (("kv_cache", tuple(_CACHE)), ("engine_kwargs", _LIMITS)):
        part = data.get(key) if isinstance(data, dict) else None
        if isinstance(part, dict):
            found |= {name: part.get(name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, int)}
