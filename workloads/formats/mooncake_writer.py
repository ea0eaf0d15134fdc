"""Writes traces in the format of Mooncake's: lengths, milliseconds, an id per started 512 tokens of the prompt."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from kvtwin.workloads.formats.mooncake import MOONCAKE_HASH_BLOCK_TOKENS
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS
from kvtwin.workloads.token_ids import with_token_ids

_ALL_IDS = 1 << 62
"""So many that two tokens of different prefixes are never one."""

Chains = dict[tuple[int, tuple[int, ...]], int]
"""The number of each prefix, by that of the prefix before its last stretch, and the tokens of the stretch."""


def write_mooncake(path: Path, records: Iterable[RequestRecord], lost: set[str]) -> int:
    """Write ``records``; returns their number. ``lost`` gets what the format does not hold, in words.

    The file appears under its name only once it is complete. A prompt known by its length alone has no ids. Raises
    `kvtwin.workloads.errors.WorkloadError` for a record with images.
    """
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    chains: Chains = {}
    count = 0
    plain, others = tee(records)
    try:
        with gzip.open(partial, "wb") if path.suffix == ".gz" else open(partial, "wb") as file:
            for record, known in zip(plain, with_token_ids(others, _ALL_IDS), strict=True):
                count += 1
                lost |= _lost(record)
                row = _row(record)
                if record.knows_prefix:
                    row["hash_ids"] = _chain(known.token_ids or (), chains)
                file.write(json.dumps(row).encode() + b"\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _row(record: RequestRecord) -> dict[str, Any]:
    milliseconds, rest = divmod(record.arrival_ns, MILLISECOND_NS)
    return {
        "timestamp": record.arrival_ns / MILLISECOND_NS if rest else milliseconds,
        "input_length": record.prompt_tokens,
        "output_length": record.output_tokens,
    }


def _chain(token_ids: Sequence[int], chains: Chains) -> list[int]:
    """The numbers of the prefixes that end with each stretch of 512 tokens, and with the prompt."""
    names: list[int] = []
    for start in range(0, len(token_ids), MOONCAKE_HASH_BLOCK_TOKENS):
        stretch = tuple(token_ids[start : start + MOONCAKE_HASH_BLOCK_TOKENS])
        names.append(chains.setdefault((names[-1] if names else -1, stretch), len(chains)))
    return names


def _lost(record: RequestRecord) -> set[str]:
    """What of a record the format does not hold."""
    held = {
        "sessions, and pauses between their turns": record.session is not None,
        "what outputs say": record.output_token_ids is not None,
        "shared prefixes that end within 512 tokens": record.token_ids is not None,
        "cache salts and LoRA adapters": record.cache_salt is not None or record.lora_name is not None,
        "priorities": record.priority != 0,
        "several samples of a prompt": record.n != 1,
    }
    return {what for what, is_lost in held.items() if is_lost}
