"""Image keys in the hash chain, against hashes that the real vLLM 0.33.0 computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtwin.engine.block_hashes import Image
from kvtwin.engine.block_keys import KeySpace, TokenContent

IMAGES = {
    "one": [("imgA", 2, 5)],
    "two": [("imgA", 1, 2), ("imgB", 5, 4)],
    "two_in_block": [("imgA", 0, 2), ("imgB", 2, 1)],
    "same_twice": [("imgA", 0, 1), ("imgA", 2, 1)],
    "end": [("imgA", 8, 4)],
}
"""Of each case: content hash, first placeholder, number of placeholders; prompt 100 to 115, blocks of 4."""

GOLDEN = json.loads((Path(__file__).parent / "golden_image_hashes.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_chain_equals_vllm(case):
    algorithm, name, salt = case.split("/")
    space = KeySpace(4, algorithm)
    images = [Image(*image) for image in IMAGES[name]]
    content = TokenContent(space, range(100, 116), None, None if salt == "None" else salt, images)
    keys: list[int] = []
    content.extend_keys(keys, 4)
    assert [space.hash_of_key(key).hex() for key in keys] == GOLDEN[case]
