"""Two logs of KV events side by side: which blocks one stored and removed, and the other did not.

Hashes differ between servers, which seed them. So a block is named by what it holds: its tokens, those of all blocks
before it, and its extra keys.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.experiments.errors import UserError

MOST_SHOWN = 3
"""Blocks of each kind and side that are shown, of those that the other side did not store or remove as often."""

_OLD_FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size")
"""Events of older versions of vLLM are lists."""


class Change(NamedTuple):
    """One block that was stored or removed, or all of them that were forgotten at once."""

    kind: str
    """``stored``, ``removed`` or ``cleared``."""
    block: bytes
    """What it holds."""
    last_tokens: tuple[int, ...]
    """A few of its tokens, to show."""


class KVLog(NamedTuple):
    """What a log of KV events says."""

    changes: list[Change]
    num_unknown: int
    """Blocks that were removed or built upon, and whose content was stored before the log begins."""


def read_kv_log(path: Path) -> KVLog:
    """A file of batches: JSON, one per line, or as vLLM publishes them, one behind the other (``.msgpack``).

    UserError: it is neither.
    """
    try:
        return kv_log(_packed_batches(path) if path.suffix == ".msgpack" else _json_batches(path), str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def _json_batches(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def _packed_batches(path: Path) -> Iterator[Any]:
    """The payloads of vLLM's messages: arrays of the time, the events and the rank (``vllm.distributed.kv_events``)."""
    import msgpack

    with path.open("rb") as file:
        unpacker, end = msgpack.Unpacker(file, strict_map_key=False), 0
        try:
            for batch in unpacker:
                end = unpacker.tell()
                yield batch
        except (ValueError, msgpack.UnpackException):
            yield None
        else:
            if end != path.stat().st_size:
                yield None  # the last batch is not whole


def kv_log(batches: Iterable[Any], name: str) -> KVLog:
    """The log of these batches, as JSON or msgpack decodes them. UserError names the one that is none, from 1 on."""
    known: dict[tuple[Any, Any], Change] = {}
    changes: list[Change] = []
    num_unknown = 0
    for number, batch in enumerate(batches, start=1):
        try:
            for event in _events(batch):
                group = event.get("group_idx")
                if event["type"] == "BlockStored":
                    num_unknown += _store(event, group, known, changes)
                elif event["type"] == "BlockRemoved":
                    for each in event["block_hashes"]:
                        change = known.get((group, each))
                        if change is None:
                            num_unknown += 1
                        else:
                            changes.append(change._replace(kind="removed"))
                elif event["type"] == "AllBlocksCleared":
                    changes.append(Change("cleared", b"", ()))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise UserError(f"{name}:{number}: expected a batch of vLLM's KV events") from None
    return KVLog(changes, num_unknown)


def _events(batch: Any) -> Iterator[dict[str, Any]]:
    for event in batch["events"] if isinstance(batch, dict) else batch[1]:
        yield dict(zip(_OLD_FIELDS, event, strict=False)) if isinstance(event, list) else event


def _store(event: dict[str, Any], group: Any, known: dict[tuple[Any, Any], Change], changes: list[Change]) -> int:
    """Take note of the event's blocks; how many of them could not be named."""
    size, tokens = event["block_size"], event["token_ids"]
    extra_keys = event.get("extra_keys") or [None] * len(event["block_hashes"])
    parent = event.get("parent_block_hash")
    before = b"" if parent is None else known.get((group, parent), Change("", b"", ())).block
    if parent is not None and not before:
        return len(event["block_hashes"])
    for index, each in enumerate(event["block_hashes"]):
        own = tokens[index * size : (index + 1) * size]
        text = json.dumps([group, own, extra_keys[index], event.get("lora_name")], default=bytes.hex)
        before = hashlib.sha256(before + text.encode()).digest()
        known[group, each] = Change("stored", before, tuple(own[-3:]))
        changes.append(known[group, each])
    return 0


def compare_kv_logs(measured: KVLog, simulated: KVLog) -> dict[str, Any]:
    """Blocks stored and removed by both, and by one alone; what was left at the end; the first difference."""
    facts: dict[str, Any] = {"unknown_measured": measured.num_unknown, "unknown_simulated": simulated.num_unknown}
    differing: list[str] = []
    for kind in ("stored", "removed"):
        of_kind = [[each for each in log.changes if each.kind == kind] for log in (measured, simulated)]
        one, two = (Counter(each.block for each in changes) for changes in of_kind)
        facts[kind] = _sides(one, two)
        for side, changes, more in (("server", of_kind[0], one - two), ("simulation", of_kind[1], two - one)):
            found = {each.block: f"only the {side} {_words(each)}" for each in changes if each.block in more}
            differing += list(found.values())[:MOST_SHOWN]
    facts["differing"] = differing
    facts["left at the end"] = _sides(Counter(_left(measured)), Counter(_left(simulated)))
    facts["first_difference"] = _first_difference(measured.changes, simulated.changes)
    return facts


def _sides(one: Counter[bytes], two: Counter[bytes]) -> dict[str, int]:
    return {
        "measured": one.total(),
        "simulated": two.total(),
        "only_measured": (one - two).total(),
        "only_simulated": (two - one).total(),
    }


def _left(log: KVLog) -> set[bytes]:
    left: set[bytes] = set()
    for each in log.changes:
        if each.kind == "cleared":
            left.clear()
        else:
            (left.add if each.kind == "stored" else left.discard)(each.block)
    return left


def _first_difference(one: list[Change], two: list[Change]) -> str | None:
    for number, (ours, theirs) in enumerate(zip(one, two, strict=False), start=1):
        if ours[:2] != theirs[:2]:
            return f"change {number}: {_words(ours)}, simulated {_words(theirs)}"
    if len(one) == len(two):
        return None
    return (
        f"change {min(len(one), len(two)) + 1}: the {'server' if len(one) > len(two) else 'simulation'} goes on alone"
    )


def _words(change: Change) -> str:
    if change.kind == "cleared":
        return "all blocks cleared"
    return f"{change.kind} the block that ends with tokens {', '.join(map(str, change.last_tokens))}"
