"""vLLM's block hash chain, byte for byte (specification, section 2).

The hash of a block covers its parent's hash, its token ids and what else changes the keys and values: LoRA
adapter, images, cache salt. So one hash names a whole prefix.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

HashFunction = Callable[[Any], bytes]
ExtraKeys = tuple[tuple[Any, ...], ...] | None

HASH_ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
DEFAULT_SEED = "vllm-none-hash"


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter: its name and path enter every block hash, its number only KV events."""

    name: str
    path: str
    number: int


@dataclass(frozen=True, slots=True)
class Image:
    """``length_tokens`` placeholder tokens of an image at prompt position ``offset_tokens``."""

    content_hash: str
    offset_tokens: int
    length_tokens: int
    text_positions: tuple[int, ...] = ()
    """Which of these tokens are text, such as line breaks of the image, from its first: they need no embedding."""

    @property
    def end_tokens(self) -> int:
        """The prompt position behind the image."""
        return self.offset_tokens + self.length_tokens

    @property
    def num_embeddings(self) -> int:
        """What the encoder makes of the image: a vector for each token that is not text."""
        return self.length_tokens - len(self.text_positions)


def hash_function(algorithm: str) -> HashFunction:
    """The function that vLLM's ``--prefix-caching-hash-algo`` names.

    Raises ValueError for an unknown name.
    """
    if algorithm not in HASH_ALGORITHMS:
        raise ValueError(f"prefix_caching_hash_algo: expected one of {', '.join(HASH_ALGORITHMS)}, got {algorithm}")
    serialise = _canonical_cbor() if algorithm.endswith("_cbor") else _pickle
    digest = _sha256 if algorithm.startswith("sha256") else _xxh3_128()
    return lambda value: digest(serialise(value))


def root_hash(algorithm: str, seed: str | None) -> bytes:
    """The parent of a prompt's first block: the hash of the seed string (PYTHONHASHSEED in vLLM).

    Without a seed, vLLM draws 32 random bytes per process for the xxhash algorithms. A simulation must repeat, so
    the fixed default seed of the sha256 algorithms is used for all four.
    """
    return hash_function(algorithm)(DEFAULT_SEED if seed is None else seed)


def extra_keys(
    block_start: int,
    block_end: int,
    lora: LoraAdapter | None = None,
    cache_salt: str | None = None,
    images: Iterable[Image] = (),
) -> ExtraKeys:
    """What the hash of the block of tokens ``block_start`` to ``block_end`` (exclusive) covers besides tokens."""
    keys: list[tuple[Any, ...]] = []
    if lora is not None:
        keys.append(("lora", lora.name, lora.path))
    for image in images:
        if image.offset_tokens < block_end and image.end_tokens > block_start:
            # A string of its own, as in vLLM: pickle writes an object that comes again otherwise than an equal one.
            content_hash = image.content_hash.encode(errors="surrogatepass").decode(errors="surrogatepass")
            keys.append(("mm", content_hash, image.offset_tokens - block_start))
    if cache_salt and block_start == 0:
        keys.append(("cache_salt", cache_salt))
    return tuple(keys) or None


def _pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


def _canonical_cbor() -> HashFunction:
    import cbor2

    return lambda value: cbor2.dumps(value, canonical=True)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3_128() -> Callable[[bytes], bytes]:
    import xxhash

    return lambda data: xxhash.xxh3_128_digest(data)
