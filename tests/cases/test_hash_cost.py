"""S14: every block is looked at once, however long a prompt waits or a chat goes on (inference-sim#525).

Only KV events ask for hashes as vLLM computes them; inside, a block of tokens behind another has a number.
"""

from array import array

import pytest

from tests.cases.engine_harness import Engine


def count_hashes(engine):
    """A list that grows by the tokens of each block that is looked up from now on. Hashes are computed of none."""
    keys = engine.scheduler.keys
    look_up, hashed = keys.key_of_block, []

    def counting(parent, tokens, others):
        hashed.append(tuple(array("q", tokens)))
        return look_up(parent, tokens, others)

    keys.key_of_block = counting
    keys.hash = None
    return hashed


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prompt_of_128k_tokens(asynchronous):
    engine = Engine(
        8200, check=False, max_model_len=140_000, max_num_batched_tokens=2048, async_scheduling=asynchronous
    )
    hashed = count_hashes(engine)
    prompt = list(range(128 * 1024))
    engine.add("a", prompt, 33)
    engine.run()
    assert len(hashed) == 8192 + 2
    assert [token for tokens in hashed[:8192] for token in tokens] == prompt


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_waiting_and_preemptions_hash_nothing_again(block_size):
    engine = Engine(96 // block_size, block_size=block_size)
    hashed = count_hashes(engine)
    engine.add("a", 48, 30)
    engine.add("b", 40, 20)
    engine.add("c", 40, 9)
    engine.run()
    assert engine.statistics.num_preemptions >= 1
    assert len(hashed) == len(set(hashed))
    known = sum(request.num_tokens // block_size for request in engine.requests.values())
    assert len(hashed) <= known


def test_a_chat_hashes_each_turn_in_proportion_to_it_all_once():
    """A turn brings its whole history as a new prompt; nothing is hashed twice within a turn."""
    engine = Engine(500)
    history = []
    for turn in range(1, 21):
        hashed = count_hashes(engine)
        history += engine.fresh(160)
        engine.serve(history)
        assert len(hashed) == len(set(hashed)) == 10 * turn


def test_without_caching_nothing_is_hashed():
    engine = Engine(20, enable_prefix_caching=False)
    hashed = count_hashes(engine)
    engine.serve(100, 50)
    assert hashed == []
