"""What hits in whole blocks lose: tokens that were computed before, in a block that only begins alike."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvtwin.engine.sglang.eviction import least_recently_used
from kvtwin.engine.sglang.radix_tree import RadixTree
from kvtwin.workloads.request_record import RequestRecord


class PartialReuse:
    """Counts what reuse of parts of blocks would add to the hits of a run, and which copies it would take.

    Beside the engine stands a tree of all known tokens that were ever computed, which forgets nothing. A prompt that
    hit every whole block of what the tree has in common with it could have had the rest too, by a copy of one block;
    where whole blocks were missed, nothing is counted. So blocks that are evicted make the count a little too high, and
    prompts that missed whole blocks a little too low. Prompts with salts, LoRA adapters or images are left out.
    """

    def __init__(self) -> None:
        self._tree = RadixTree(least_recently_used)
        self.tokens = 0
        """Prompt tokens that would be hit besides."""
        self.copies = 0
        """Blocks copied for them."""
        self.knows_any = False

    def admitted(self, record: RequestRecord, num_hit_tokens: int, block_size: int, *, counts: bool) -> None:
        """A prompt was admitted for the first time, and hit ``num_hit_tokens`` in blocks of ``block_size``."""
        if not _is_plain(record):
            return
        tokens = array("q", record.token_ids or ())
        seen = min(self._tree.num_cached(tokens), record.prompt_tokens - 1)
        if counts:
            self.knows_any = True
            if 0 < seen - num_hit_tokens < block_size:
                self.tokens += seen - num_hit_tokens
                self.copies += 1
        self._tree.insert(tokens, tokens)

    def ended(self, record: RequestRecord, num_output_tokens: int) -> None:
        """An output was computed; its last token was not."""
        if not _is_plain(record) or not record.output_token_ids:
            return
        computed = array("q", record.token_ids or ()) + array("q", record.output_token_ids[: num_output_tokens - 1])
        self._tree.insert(computed, computed)

    def add(self, other: PartialReuse) -> None:
        """Count what another one counted."""
        self.tokens += other.tokens
        self.copies += other.copies
        self.knows_any |= other.knows_any

    def figures(self) -> dict[str, Any]:
        """The keys of a run's summary. None: no tokens are known, so nothing is."""
        return {
            "partial_reuse_tokens": self.tokens if self.knows_any else None,
            "partial_reuse_copies": self.copies if self.knows_any else None,
        }


def _is_plain(record: RequestRecord) -> bool:
    known: Sequence[int] | None = record.token_ids
    return known is not None and not (record.cache_salt or record.lora_name or record.images)
