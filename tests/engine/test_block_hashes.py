"""Block hashes against bytes written by hand: pickle's and CBOR's, as the specification, section 2, lists them."""

import hashlib
import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_hashes import HASH_ALGORITHMS, Image, LoraAdapter, extra_keys, hash_function, root_hash
from tests.parts import examples

DIGESTS = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "xxhash": lambda data: xxhash.xxh3_128(data).digest(),
}


class PickleWriter:
    """Protocol 5 for bytes, text, None, small ints and tuples. Objects are memoised by identity."""

    def __init__(self):
        self.memo = {}

    def dump(self, value):
        body = self.encode(value) + b"."
        return b"\x80\x05\x95" + struct.pack("<Q", len(body)) + body

    def encode(self, value):
        if value is None:
            return b"N"
        if isinstance(value, int):
            if value < 256:
                return b"K" + struct.pack("<B", value)
            return b"M" + struct.pack("<H", value) if value < 65536 else b"J" + struct.pack("<i", value)
        if id(value) in self.memo:
            return b"h" + struct.pack("<B", self.memo[id(value)])
        if isinstance(value, bytes):
            data = b"C" + struct.pack("<B", len(value)) + value
        elif isinstance(value, str):
            text = value.encode()
            data = b"\x8c" + struct.pack("<B", len(text)) + text
        else:
            items = b"".join(self.encode(item) for item in value)
            endings = {1: b"\x85", 2: b"\x86", 3: b"\x87"}
            data = items + endings[len(value)] if len(value) in endings else b"(" + items + b"t"
        self.memo[id(value)] = len(self.memo)
        return data + b"\x94"


def cbor(value):
    """Canonical CBOR of bytes, text, None, ints and tuples."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return cbor_head(0, value) if value >= 0 else cbor_head(1, -1 - value)
    if isinstance(value, bytes):
        return cbor_head(2, len(value)) + value
    if isinstance(value, str):
        return cbor_head(3, len(value.encode())) + value.encode()
    return cbor_head(4, len(value)) + b"".join(map(cbor, value))


def cbor_head(major, number):
    if number < 24:
        return bytes([major << 5 | number])
    for code, form in ((24, ">B"), (25, ">H"), (26, ">I")):
        if number < 1 << 8 * struct.calcsize(form):
            return bytes([major << 5 | code]) + struct.pack(form, number)
    raise AssertionError(number)


def by_hand(algorithm, value):
    data = cbor(value) if algorithm.endswith("_cbor") else PickleWriter().dump(value)
    return DIGESTS[algorithm.removesuffix("_cbor")](data)


all_algorithms = pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
texts = st.text(max_size=20)
token_ids = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, 2**31 - 1))


@all_algorithms
@examples(80)
@given(
    parent=st.one_of(st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32)),
    tokens=st.lists(token_ids, min_size=1, max_size=40),
    lora=st.none() | st.tuples(texts, texts),
    salt=texts,
    image_offsets=st.lists(st.integers(0, 60), max_size=2, unique=True),
)
def test_any_block(algorithm, parent, tokens, lora, salt, image_offsets):
    # Fresh strings: pickle refers back to an object that it has seen, not to an equal one.
    adapter = LoraAdapter("n" + lora[0], "/p" + lora[1], 1) if lora else None
    images = [Image(f"image {offset}", offset, 10) for offset in image_offsets]
    block = (parent, tuple(tokens), extra_keys(0, len(tokens), adapter, salt and "s" + salt, images))
    assert hash_function(algorithm)(block) == by_hand(algorithm, block)


@all_algorithms
@pytest.mark.parametrize("seed", [None, "0", "vllm-none-hash", "ü"])
def test_the_root_is_the_hash_of_the_seed(algorithm, seed):
    text = "vllm-none-hash" if seed is None else seed
    assert root_hash(algorithm, seed) == by_hand(algorithm, text)
    assert len(root_hash(algorithm, seed)) == (32 if algorithm.startswith("sha256") else 16)


@all_algorithms
def test_a_chain(algorithm):
    compute, parent, expected = hash_function(algorithm), root_hash(algorithm, "3"), by_hand(algorithm, "3")
    for index in range(5):
        tokens = tuple(range(index * 16, index * 16 + 16))
        parent, expected = compute((parent, tokens, None)), by_hand(algorithm, (expected, tokens, None))
        assert parent == expected


def test_an_unknown_algorithm():
    with pytest.raises(ValueError, match="expected one of sha256, sha256_cbor, xxhash, xxhash_cbor, got builtin"):
        hash_function("builtin")


@examples(200)
@given(
    block_size=st.integers(1, 20),
    index=st.integers(0, 5),
    offset=st.integers(0, 120),
    length=st.integers(1, 50),
    salt=st.sampled_from([None, "", "pepper"]),
    lora=st.sampled_from([None, LoraAdapter("sql", "/loras/sql", 7)]),
)
def test_what_a_block_is_told_apart_by(block_size, index, offset, length, salt, lora):
    start = index * block_size
    expected = []
    if lora:
        expected.append(("lora", "sql", "/loras/sql"))
    if set(range(start, start + block_size)) & set(range(offset, offset + length)):
        expected.append(("mm", "cat", offset - start))
    if salt and index == 0:
        expected.append(("cache_salt", "pepper"))
    keys = extra_keys(start, start + block_size, lora, salt, [Image("cat", offset, length)])
    assert keys == (tuple(expected) or None)


@all_algorithms
def test_an_image_that_comes_twice_is_hashed_alike_whether_or_not_its_hash_is_one_object(algorithm):
    """vLLM has an object for each image; pickle would write the second time of one object as a reference."""
    name, equal_name = "red cat", "".join(["red ", "cat"])
    assert name is not equal_name
    one, two = (
        hash_function(algorithm)((b"", (1, 2), extra_keys(0, 9, images=[Image(name, 0, 2), Image(other, 2, 2)])))
        for other in (name, equal_name)
    )
    assert one == two
