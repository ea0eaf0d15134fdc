"""Block keys: the ints by which the engine names cached prefixes.

Three kinds of content, by what is known of a prompt, hand out keys. Equal keys mean equal prefixes.

* odd keys: interned blocks of known token ids, each behind the one before it; vLLM's hashes of them are computed where
  somebody asks for one;
* even keys: a position inside an interned prefix id of a trace;
* negative keys: private to one request, because nothing is known that another could share. A private key still
  matters: a preempted request finds its own blocks again, and a full block without a key would be reused first.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

from kvtwin.engine.block_hashes import ExtraKeys, Image, LoraAdapter, extra_keys, hash_function, root_hash
from kvtwin.engine.prefix_tree import PrefixTree, Stretch

UNKNOWN_TOKEN = -1
"""Stands for an output token whose id the workload does not tell."""

_UNKNOWN_BYTES = array("q", (UNKNOWN_TOKEN,)).tobytes()

LONGEST_ID_TOKENS = 2**32
"""Positions set aside for an id whose length is not known beforehand."""


_Block = tuple[int, bytes, Any]
"""What tells a block of known tokens from all others: its parent's key, its tokens, and what else its hash covers."""


class KeySpace:
    """Hands out keys so that equal prefixes, and only they, get equal keys.

    One per engine, or of several with the same settings, of which one prompt is looked up. ``hash_block_size`` is the
    number of tokens that a key stands for, ``hash_lookahead_tokens`` how many more after them it depends on
    (specification, section 2.7): so many must be known before there is a key.
    """

    def __init__(
        self, hash_block_size: int, algorithm: str = "sha256", seed: str | None = None, hash_lookahead_tokens: int = 0
    ) -> None:
        self.hash_block_size = hash_block_size
        self.hash_lookahead_tokens = hash_lookahead_tokens
        self.hash = hash_function(algorithm)
        self.root_hash = root_hash(algorithm, seed)
        self._block_keys: dict[_Block, int] = {}
        self._blocks: list[_Block] = []
        """Of each odd key, in order, the block that it stands for."""
        self._hashes: dict[int, bytes] = {}
        """Those that were asked for, by key."""
        self._prefixes = PrefixTree()
        self._prefixes.take(1)  # key 0 is none
        self._image_places: dict[tuple[Any, ...], int] = {}
        self._last_private_key = 0

    def private_key(self) -> int:
        """A key that was never handed out before."""
        self._last_private_key -= 1
        return self._last_private_key

    def private_keys(self, count: int) -> int:
        """``count`` such keys: the first of them, from which they go downwards."""
        first = self._last_private_key - 1
        self._last_private_key -= count
        return first

    def key_of_block(self, parent: int, tokens: bytes, others: Any = None) -> int:
        """The key of the block of ``tokens``, signed numbers of 64 bits, behind the one with the key ``parent``.

        0 is the parent of a first block. ``others`` is what the block's hash covers besides.
        """
        block = parent, tokens, others
        key = self._block_keys.get(block)
        if key is None:
            key = self._block_keys[block] = 2 * len(self._blocks) + 1
            self._blocks.append(block)
        return key

    def hash_of_key(self, key: int) -> bytes | None:
        """vLLM's hash of the block behind ``key``; None when the key does not stand for a block of known tokens."""
        if key <= 0 or key % 2 == 0:
            return None
        chain = []
        while key and key not in self._hashes:
            chain.append(key)
            key = self._blocks[key // 2][0]
        block_hash = self._hashes[key] if key else self.root_hash
        for key in reversed(chain):
            _, tokens, others = self._blocks[key // 2]
            block_hash = self._hashes[key] = self.hash((block_hash, tuple(array("q", tokens)), others))
        return block_hash

    def prefix_stretches(self, name: tuple[Any, ...], prefix_ids: Sequence[Hashable], id_tokens: int) -> list[Stretch]:
        """Where the tokens of ``prefix_ids``, at most ``id_tokens`` each, lie; a key is twice a token's place.

        Equal ids behind equal ones lie at the same place, under one ``name``; all under it have the same ``id_tokens``.
        """
        return self._prefixes.stretches(name, prefix_ids, id_tokens)

    def place_behind_images(self, place: int, images: tuple[Any, ...]) -> int:
        """Where tokens that lie from ``place`` on lie if ``images`` come before."""
        known = self._image_places.get((place, images))
        if known is None:
            known = self._image_places[place, images] = self._prefixes.take(LONGEST_ID_TOKENS)
        return known


class Content:
    """What is known of a request's tokens, seen as a source of block keys.

    LoRA adapter, cache salt and images tell equal tokens apart: they are what a block hash covers besides tokens.
    """

    def __init__(
        self,
        space: KeySpace,
        lora: LoraAdapter | None = None,
        cache_salt: str | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        self._space = space
        self._lora = lora
        self._cache_salt = cache_salt
        self._images = tuple(images)

    def extend_keys(self, keys: list[int], num_keys: int) -> None:
        """Append the keys of further full blocks until there are ``num_keys``; the key space's lookahead is known."""
        self.extend_shared_keys(keys, num_keys)
        while len(keys) < num_keys:
            keys.append(self._space.private_key())

    def extend_shared_keys(self, keys: list[int], num_keys: int) -> None:
        """Append the keys of those further full blocks that other requests may share, until there are ``num_keys``."""

    def shared_key_runs(self, keys: Sequence[int], num_keys: int) -> list[int]:
        """``keys``, and what :meth:`extend_shared_keys` appends to them, as runs: first key, step, and how many."""
        all_keys = list(keys)
        self.extend_shared_keys(all_keys, num_keys)
        return [number for key in all_keys for number in (key, 0, 1)]

    def append(self, token_ids: Sequence[int]) -> None:
        """Take note of output tokens. They do not matter where token ids are unknown."""

    @property
    def namespace(self) -> Hashable:
        """Requests of different namespaces share nothing, whatever their tokens are."""
        return type(self).__name__, self._lora, self._cache_salt or None

    def shared_marks(self, start: int, end: int) -> Sequence[int]:
        """Numbers for the tokens from ``start`` to ``end``, as far as other requests may share them.

        In one namespace and behind equal ones, equal numbers mean equal tokens. None is negative. Images do not count.
        """
        return ()

    def token_ids(self, start: int, end: int) -> list[int]:
        """Ids of the tokens from ``start`` to ``end``; empty when they are not known."""
        return []

    def extra_keys(self, start: int, end: int) -> ExtraKeys:
        """What the block of tokens ``start`` to ``end`` (exclusive) is told apart by besides its tokens."""
        end += self._space.hash_lookahead_tokens
        return extra_keys(start, end, self._lora, self._cache_salt, self._images)


class TokenContent(Content):
    """Known token ids: keys stand for vLLM's block hashes. Behind an unknown token all keys are private."""

    def __init__(
        self,
        space: KeySpace,
        prompt_token_ids: Sequence[int],
        lora: LoraAdapter | None = None,
        cache_salt: str | None = None,
        images: Sequence[Image] = (),
    ) -> None:
        super().__init__(space, lora, cache_salt, images)
        self._tokens = array("q", prompt_token_ids)
        has_unknown = _UNKNOWN_BYTES in self._tokens.tobytes()
        self._num_known = self._known(self._tokens) if has_unknown else len(self._tokens)
        """Tokens before the first one that is not known."""
        self._varies = lora is not None or bool(cache_salt) or bool(images)

    def append(self, token_ids: Sequence[int]) -> None:
        if self._num_known == len(self._tokens):
            self._num_known += self._known(token_ids)
        self._tokens.extend(token_ids)

    @staticmethod
    def _known(token_ids: Sequence[int]) -> int:
        return token_ids.index(UNKNOWN_TOKEN) if UNKNOWN_TOKEN in token_ids else len(token_ids)

    def token_ids(self, start: int, end: int) -> list[int]:
        return self._tokens[start:end].tolist()

    def shared_marks(self, start: int, end: int) -> Sequence[int]:
        return self._tokens[start : min(end, self._num_known)]

    def extend_shared_keys(self, keys: list[int], num_keys: int) -> None:
        hash_block_size, lookahead = self._space.hash_block_size, self._space.hash_lookahead_tokens
        parent, key_of_block = keys[-1] if keys else 0, self._space.key_of_block
        if parent < 0:
            return
        first = len(keys)
        last = min(num_keys, (self._num_known - lookahead) // hash_block_size)
        tokens = self._tokens[first * hash_block_size : last * hash_block_size].tobytes()
        size = hash_block_size * self._tokens.itemsize
        others: tuple[Any, ...] | None = None
        for index in range(first, last):
            if self._varies or lookahead:
                end = (index + 1) * hash_block_size
                others = self.extra_keys(end - hash_block_size, end) if self._varies else None
                if lookahead:
                    others = (others, *self._tokens[end : end + lookahead])
            parent = key_of_block(parent, tokens[(index - first) * size : (index - first + 1) * size], others)
            keys.append(parent)


class OpaqueContent(Content):
    """Only the length is known: every key is private, and hits of the prompt cannot be known."""
