"""Content of which a trace tells prefix ids instead of tokens."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import LONGEST_ID_TOKENS, Content, KeySpace
from kvtwin.engine.prefix_tree import Stretch


class PrefixIdContent(Content):
    """Prefix ids of a trace: id ``i`` names the prefix that ends at token ``ends[i]``.

    ``ends`` is a range where ids stand for equally many tokens. A block is named by the id that holds its last token
    and by its end inside that id, so any block size works, also one that does not divide an id's tokens. Blocks that
    reach behind ``num_named_tokens`` or the last id are private; named tokens may go beyond the prompt, into an output
    that later prompts repeat. An id counts together with the ids before it, so a file that repeats one behind another
    prefix does no harm.

    Where keys look ahead (speculative decoding), prompts that share a block are taken to share the next tokens too: ids
    stand for many tokens, and prompts that part inside the next id seldom do so at its first token.
    """

    def __init__(
        self,
        space: KeySpace,
        num_named_tokens: int,
        prefix_ids: Sequence[int],
        ends: Sequence[int],
        lora: LoraAdapter | None = None,
        cache_salt: str | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        super().__init__(space, lora, cache_salt, images)
        self._prefix_ids = prefix_ids
        self._ends = ends
        self._id_tokens = ends.step if isinstance(ends, range) else None
        """Tokens of each id; None where they differ."""
        self._num_named_tokens = min(num_named_tokens, ends[-1] if ends else 0)

    def extend_shared_keys(self, keys: list[int], num_keys: int) -> None:
        for first, step, count in self._runs(len(keys), num_keys, self._space.hash_block_size):
            keys.extend(range(first, first + step * count, step))

    def shared_marks(self, start: int, end: int) -> Sequence[int]:
        marks = array("q")
        for first, step, count in self._runs(start, end, 1):
            marks.extend(range(first, first + step * count, step))
        return marks

    def shared_key_runs(self, keys: Sequence[int], num_keys: int) -> list[int]:
        runs = [number for key in keys for number in (key, 0, 1)]
        for run in self._runs(len(keys), num_keys, self._space.hash_block_size):
            runs += run
        return runs

    def _runs(self, start: int, end: int, block_tokens: int) -> Iterator[tuple[int, int, int]]:
        """Keys of blocks of ``block_tokens`` from ``start`` to ``end`` with names: first key, step, and how many."""
        first_unnamed = min(end, self._num_named_tokens // block_tokens)
        if start >= first_unnamed:
            return

        def first_behind_of(stretch: Stretch) -> int:
            """The first block that ends behind ``stretch``."""
            return self._ends[stretch.first_id + stretch.num_ids - 1] // block_tokens

        first = bisect_right(self._stretches, start, key=first_behind_of) if start else 0
        for stretch in islice(self._stretches, first, None):
            first_behind = min(first_unnamed, first_behind_of(stretch))
            first_token = self._ends[stretch.first_id - 1] if stretch.first_id else 0
            while start < first_behind:
                end = (start + 1) * block_tokens
                count = 1 if self._images else first_behind - start
                yield 2 * (self._place(stretch, end) + end - 1 - first_token), 2 * block_tokens, count
                start += count

    @cached_property
    def _stretches(self) -> list[Stretch]:
        """Where the tokens of the ids lie; if ids stand for different numbers of tokens, each is a stretch."""
        name = self._id_tokens, self._cache_salt or None, self._lora
        if self._id_tokens:
            return self._space.prefix_stretches(name, list(self._prefix_ids), self._id_tokens)
        # The same id may begin elsewhere in another prompt: then it is another prefix.
        ids = list(zip(self._prefix_ids, (0, *self._ends[:-1]), strict=True))
        return [
            Stretch(first_id + index, 1, place + index * LONGEST_ID_TOKENS)
            for first_id, num_ids, place in self._space.prefix_stretches(name, ids, LONGEST_ID_TOKENS)
            for index in range(num_ids)
        ]

    def _place(self, stretch: Stretch, end: int) -> int:
        """Where ``stretch`` lies for a block that ends at token ``end``: images before it set it apart."""
        end += self._space.hash_lookahead_tokens
        seen = tuple((image.content_hash, image.offset_tokens) for image in self._images if image.offset_tokens < end)
        return self._space.place_behind_images(stretch.place, seen) if seen else stretch.place
