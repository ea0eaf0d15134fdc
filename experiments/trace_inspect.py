"""``kvtwin trace inspect``: what a workload file holds, and what an infinite prefix cache could hit of it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from tqdm import tqdm

from engine.config import VLLM_VERSION
from experiments.parser import Whole
from experiments.trace_options import add_trace_arguments, open_trace
from workloads.request_record import RequestRecord
from workloads.workload import Workload

SECOND_NS = 1_000_000_000

EPILOGUE = """\
examples:
  kvtwin trace inspect conversation_trace.jsonl.gz --block-size 512
  kvtwin trace inspect qwen.jsonl --timed-trace-chunk-hash-size 16 --timed-trace-sec-multiplier 1
"""


class InfiniteCache:
    """A prefix cache that never evicts: which full blocks of a prompt were seen in an earlier request.

    A block is its tokens, everything before it, and what vLLM hashes beside tokens (LoRA, salt, images).
    Known output tokens are cached too, but for the last, whose KV is never computed.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._seen_blocks: set[bytes] = set()
        self._seen_tokens_of_id: dict[tuple[Any, ...], int] = {}

    def add(self, record: RequestRecord) -> tuple[int, int]:
        """Look ``record`` up, then store it; return its full blocks seen before, and how many of them lead.

        The prompt must be known (``record.knows_prefix``).
        """
        if record.token_ids is not None:
            return self._add_tokens(record, record.token_ids)
        return self._add_hash_ids(record)

    def _add_tokens(self, record: RequestRecord, token_ids: Iterable[int]) -> tuple[int, int]:
        tokens = array("q", token_ids)
        tokens.extend((record.output_token_ids or ())[:-1])
        block_bytes = self.block_size * tokens.itemsize
        data = memoryview(tokens).cast("B")
        key = _root(record)
        blocks = []
        for start in range(0, len(data) - block_bytes + 1, block_bytes):
            extra = _images_in(record, start // tokens.itemsize, self.block_size) if record.images else b""
            key = blake2b(key + extra + data[start : start + block_bytes], digest_size=16).digest()
            blocks.append(key)
        hits = 0
        for key in blocks[: record.prompt_tokens // self.block_size]:
            if key not in self._seen_blocks:
                break
            hits += 1
        self._seen_blocks.update(blocks)
        return hits, hits

    def _add_hash_ids(self, record: RequestRecord) -> tuple[int, int]:
        """An id names a prefix, so all requests cut the same blocks from it: one number per id tells which
        are seen.

        A block belongs to the id that holds its last token. (With images, ids are looked at block by block.)
        """
        assert record.hash_ids is not None
        assert record.hash_block_tokens is not None
        block_size, id_tokens = self.block_size, record.hash_block_tokens
        named_tokens = min(record.prompt_tokens, len(record.hash_ids) * id_tokens)
        ends: Iterable[int] = range(id_tokens, named_tokens + id_tokens, id_tokens)
        if record.images:
            ends = sorted({*ends, *range(block_size, named_tokens, block_size)})
        root = _root(record)
        hits = leading = start = 0
        for end in ends:
            end = min(end, named_tokens)
            index = (end - 1) // id_tokens
            images = tuple((i.content_hash, i.offset_tokens) for i in record.images if i.offset_tokens < end)
            name = (record.hash_ids[index], id_tokens, root, images)
            id_start = index * id_tokens
            seen = self._seen_tokens_of_id.get(name, 0)
            first_block = start // block_size
            num_blocks = end // block_size - first_block
            num_seen = max(0, min(end, id_start + seen) // block_size - first_block)
            if leading == first_block:
                leading += num_seen
            hits += num_seen
            if seen < end - id_start and num_blocks:
                self._seen_tokens_of_id[name] = end - id_start
            start = end
        return hits, leading


def _root(record: RequestRecord) -> bytes:
    """What sets all blocks of a request apart from equal tokens elsewhere; empty for most requests."""
    parts = (record.lora_name, record.cache_salt or None)
    return b"" if parts == (None, None) else repr(parts).encode()


def _images_in(record: RequestRecord, start: int, block_size: int) -> bytes:
    """The images that overlap the block of tokens from ``start`` on, and where they begin."""
    found = [
        (image.content_hash, image.offset_tokens - start)
        for image in record.images
        if image.offset_tokens < start + block_size and image.offset_tokens + image.length_tokens > start
    ]
    return repr(found).encode() if found else b""


def inspect_workload(workload: Workload, block_size: int = 16) -> dict[str, Any]:
    """Everything ``kvtwin trace inspect`` tells about ``workload``, as a dict for JSON. Reads it once more.

    ``sharing`` is None when no prompt is known by more than its length. Its ``hit_tokens`` follow vLLM's
    rule: the leading blocks that were seen, at most ``(prompt - 1) // block_size``, so that a token is left
    to compute.
    """
    if block_size < 1:
        raise ValueError(f"block size: expected at least 1 token, got {block_size}")
    cache = InfiniteCache(block_size)
    inputs, outputs, known_by = Counter[int](), Counter[int](), Counter[str]()
    full_blocks = hit_blocks = queried_tokens = hit_tokens = prompts_with_hit = 0
    sessions, loras, salts = set[str](), set[str](), set[str]()
    later_turns = with_priority = with_images = 0
    gaps, instants = _Gaps(), _Instants()
    progress = tqdm(workload, desc="reading", unit=" requests", delay=2, leave=False, file=sys.stderr)
    for record in progress:
        inputs[record.prompt_tokens] += 1
        outputs[record.output_tokens] += 1
        gaps.add(record.arrival_ns)
        instants.add(record.arrival_ns)
        if record.session is not None:
            sessions.add(record.session)
        if record.lora_name is not None:
            loras.add(record.lora_name)
        if record.cache_salt:
            salts.add(record.cache_salt)
        later_turns += record.think_time_ns is not None
        with_priority += record.priority != 0
        with_images += bool(record.images)
        known_by[_known_by(record)] += 1
        if record.knows_prefix:
            hits, leading = cache.add(record)
            usable = min(leading, (record.prompt_tokens - 1) // block_size)
            full_blocks += record.prompt_tokens // block_size
            hit_blocks += hits
            queried_tokens += record.prompt_tokens
            hit_tokens += usable * block_size
            prompts_with_hit += usable > 0
    span_s = (workload.last_arrival_ns - workload.first_arrival_ns) / SECOND_NS
    num_known = known_by["tokens"] + known_by["hash_ids"]
    return {
        "vllm_version": VLLM_VERSION,
        "path": str(workload.path),
        "format": workload.format_name,
        "num_requests": len(workload),
        "num_unsorted": workload.num_unsorted,
        "span_s": span_s,
        "requests_per_s": len(workload) / span_s if span_s else None,
        "interarrival_cv": gaps.coefficient_of_variation(),
        "num_distinct_arrivals": instants.number,
        "most_at_one_instant": instants.most,
        "input_tokens": summarise(inputs),
        "output_tokens": summarise(outputs),
        "num_zero_outputs": outputs[0],
        "prompts_known_by": {name: known_by[name] for name in ("tokens", "hash_ids", "length")},
        "num_sessions": len(sessions),
        "num_later_turns": later_turns,
        "num_loras": len(loras),
        "num_cache_salts": len(salts),
        "num_with_priority": with_priority,
        "num_with_images": with_images,
        "sharing": {
            "block_size": block_size,
            "full_blocks": full_blocks,
            "hit_blocks": hit_blocks,
            "hit_block_share": hit_blocks / full_blocks if full_blocks else 0.0,
            "queried_tokens": queried_tokens,
            "hit_tokens": hit_tokens,
            "hit_token_share": hit_tokens / queried_tokens,
            "num_prompts": num_known,
            "num_prompts_with_hit": prompts_with_hit,
        }
        if num_known
        else None,
        "notes": [*workload.warnings, *_lacks(known_by, outputs[0])],
    }


def summarise(counts: Counter[int]) -> dict[str, float]:
    """Total, mean, p50, p90, p99 and maximum of numbers that occur ``counts[number]`` times.

    Percentiles lie between two numbers as numpy's do (linear).
    """
    values = sorted(counts)
    total = sum(value * count for value, count in counts.items())
    ends, end = [], 0
    for value in values:
        end += counts[value]
        ends.append(end)

    def at(rank: int) -> int:
        return values[bisect_right(ends, rank)]

    def percentile(q: int) -> float:
        below, part = divmod(q * (end - 1), 100)
        low = at(below)
        return low + (at(below + 1) - low) * part / 100 if part else float(low)

    return {"total": total, "mean": total / end} | {f"p{q}": percentile(q) for q in (50, 90, 99)} | {"max": values[-1]}


class _Gaps:
    """Gaps between arrivals, summed in integers."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._number = self._sum = self._sum_of_squares = 0

    def add(self, arrival_ns: int) -> None:
        if self._last_ns is not None:
            gap = arrival_ns - self._last_ns
            self._number += 1
            self._sum += gap
            self._sum_of_squares += gap * gap
        self._last_ns = arrival_ns

    def coefficient_of_variation(self) -> float | None:
        """Deviation over mean; None when all requests arrive together."""
        if not self._sum:
            return None
        return math.sqrt(self._number * self._sum_of_squares - self._sum**2) / self._sum


class _Instants:
    """How many arrival times there are, and how many requests share the busiest."""

    def __init__(self) -> None:
        self.number = self.most = self._here = 0
        self._last_ns: int | None = None

    def add(self, arrival_ns: int) -> None:
        if arrival_ns != self._last_ns:
            self.number += 1
            self._here = 0
            self._last_ns = arrival_ns
        self._here += 1
        self.most = max(self.most, self._here)


def _known_by(record: RequestRecord) -> str:
    if record.token_ids is not None:
        return "tokens"
    return "length" if record.hash_ids is None else "hash_ids"


def _lacks(known_by: Counter[str], num_zero_outputs: int) -> list[str]:
    """What the file does not tell, in words."""
    notes = []
    if known_by["length"] == known_by.total():
        notes.append("no prefix information: the hit rate will be unknown")
    elif known_by["length"]:
        notes.append(f"{known_by['length']:,} prompts are known by length only: their hits will be unknown")
    if known_by["hash_ids"]:
        notes.append("hash ids name prompts only: hits on earlier outputs show where later prompts repeat their ids")
    if num_zero_outputs:
        notes.append(f"{num_zero_outputs:,} requests have no output tokens: they will be refused one by one")
    return notes


def as_text(facts: dict[str, Any]) -> str:
    """``facts`` of `inspect_workload`, to be read."""
    lines = [f"{facts['path']}  ({facts['format']}); cache rules of vLLM {VLLM_VERSION}", ""]

    def row(label: str, value: str) -> None:
        lines.append(f"{label:<24}{value}")

    row("requests", f"{facts['num_requests']:,}, {facts['num_unsorted']:,} out of order")
    rate, cv = facts["requests_per_s"], facts["interarrival_cv"]
    row("span", f"{facts['span_s']:,.1f} s" + (f", {rate:,.2f} requests/s" if rate is not None else ""))
    row("interarrival CV", "none: all arrive together" if cv is None else f"{cv:.2f}")
    row(
        "distinct arrival times",
        f"{facts['num_distinct_arrivals']:,}, up to {facts['most_at_one_instant']:,} at one",
    )
    known = facts["prompts_known_by"]
    row(
        "prompts known by",
        f"tokens {known['tokens']:,}, hash ids {known['hash_ids']:,}, length {known['length']:,}",
    )
    for label, key in (
        ("sessions", "num_sessions"),
        ("later turns", "num_later_turns"),
        ("LoRA adapters", "num_loras"),
        ("cache salts", "num_cache_salts"),
        ("requests with priority", "num_with_priority"),
        ("requests with images", "num_with_images"),
        ("zero outputs", "num_zero_outputs"),
    ):
        if facts[key]:
            row(label, f"{facts[key]:,}")
    lines += ["", f"{'tokens':<24}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}{'total':>16}"]
    for label in ("input", "output"):
        of = facts[f"{label}_tokens"]
        cells = "".join(f"{of[name]:>9,.0f}" for name in ("mean", "p50", "p90", "p99", "max"))
        lines.append(f"{label:<24}{cells}{of['total']:>16,}")
    sharing = facts["sharing"]
    if sharing is not None:
        lines += ["", f"prefix sharing, infinite cache, blocks of {sharing['block_size']} tokens"]
        for label, part, whole in (
            ("full blocks hit", "hit_blocks", "full_blocks"),
            ("prompt tokens hit", "hit_tokens", "queried_tokens"),
            ("prompts with a hit", "num_prompts_with_hit", "num_prompts"),
        ):
            share = sharing[part] / sharing[whole] if sharing[whole] else 0.0
            row(label, f"{sharing[part]:,} of {sharing[whole]:,} ({share:.2%})")
    lines += ["", *(f"note: {note}" for note in facts["notes"])] if facts["notes"] else []
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``kvtwin trace inspect``."""
    add_trace_arguments(parser)
    parser.add_argument("--block-size", type=Whole(), default=16, metavar="TOKENS", help="tokens per cache block")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Print what is in ``args.trace``."""
    facts = inspect_workload(open_trace(args), args.block_size)
    print(json.dumps(facts, indent=2, allow_nan=False) if args.json else as_text(facts))
    return 0
