"""S7: equal tokens are the same prefix only under the same salt, adapter and images."""

import itertools

import pytest

from kvtwin.engine.block_hashes import Image
from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.prefix_id_content import PrefixIdContent
from tests.cases.engine_harness import Engine

IDENTITIES = [
    {},
    {"salt": "x"},
    {"salt": "y"},
    {"lora": "sql"},
    {"lora": "chat"},
    {"lora": "sql", "salt": "x"},
]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(IDENTITIES, repeat=2)))
def test_salts_and_adapters(first, second):
    engine = Engine(32, max_loras=2)
    prompt = engine.fresh(65)
    engine.serve(prompt, **first)
    assert engine.serve(prompt, **second) == (64 if first == second else 0)


def test_an_empty_salt_is_none():
    engine = Engine(32)
    prompt = engine.fresh(65)
    engine.serve(prompt, salt="")
    assert engine.serve(prompt) == 64


def contents(kind, engine, length, images):
    """Content of a prompt of equal placeholder tokens or equal prefix ids."""
    if kind == "tokens":
        return lambda tokens: TokenContent(engine.scheduler.keys, tokens, images=images)
    ids = range(-(-length // 32))
    return lambda tokens: PrefixIdContent(
        engine.scheduler.keys, length, ids, range(32, 32 * len(ids) + 32, 32), images=images
    )


@pytest.mark.parametrize("kind", ["tokens", "prefix ids"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 40, 63])
def test_a_hit_stops_before_the_block_with_the_first_placeholder_of_another_image(kind, block_size, offset):
    """LMCache#690."""
    engine = Engine(300, block_size=block_size)
    prompt = engine.fresh(offset) + [9] * 20 + engine.fresh(30)
    length = len(prompt)
    red, blue = ([Image(colour, offset, 20)] for colour in ("red", "blue"))
    engine.serve(prompt, content=contents(kind, engine, length, red))
    assert engine.serve(prompt, content=contents(kind, engine, length, red)) == (length - 1) // block_size * block_size
    assert engine.serve(prompt, content=contents(kind, engine, length, blue)) == offset // block_size * block_size


@pytest.mark.parametrize("max_loras", [1, 2, 3])
def test_no_more_adapters_run_than_allowed_and_others_pass_those_that_wait(max_loras):
    engine = Engine(64, max_loras=max_loras)
    names = ["a", "b", "c", "d", "a", None, "b"]
    for index, name in enumerate(names):
        engine.add(str(index), 16, 3 + index % 2, lora=name)
    while engine.core.has_work():
        step = engine.iterate()
        assert len({request.lora for request in engine.scheduler.running if request.lora}) <= max_loras
        if step.index == 0:
            allowed = set("abc"[:max_loras])
            assert [request.request_id for request in step.requests] == [
                str(index) for index, name in enumerate(names) if name is None or name in allowed
            ]
            waiting = [request.request_id for request in engine.scheduler.waiting]
            assert waiting == sorted(waiting)
