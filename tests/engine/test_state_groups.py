"""Groups of states beyond the plain ones: prefill checkpoints, hits on parts of blocks, blocks for drafts."""

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.speculation import Speculation
from tests.cases.engine_harness import Engine, shape

FULL = CacheGroupSpec("full_attention", 8)
STATES = CacheGroupSpec("mamba", 8)
WITH_CHECKPOINTS = CacheGroupSpec("mamba", 8, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)


def test_the_last_chunk_leaves_a_checkpoint():
    """A prompt of 45 in blocks of 8: one chunk and a state of 40 tokens, which the same prompt hits."""
    prompt = range(45)
    engine = Engine(60, cache_groups=(FULL, WITH_CHECKPOINTS))
    request = engine.add("a", prompt, 2)
    assert shape(engine.iterate()) == {"a": 45}
    assert request.block_tables == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 7, 8]]
    engine.run()
    assert engine.serve(prompt) == 40
    plain = Engine(60, cache_groups=(FULL, STATES))
    plain.add("a", prompt, 2)
    assert shape(plain.iterate()) == {"a": 40}


def test_a_checkpoint_keeps_to_its_alignment():
    """40 tokens are no multiple of 16 behind the start, so the prompt is cut there as without checkpoints."""
    spec = CacheGroupSpec("mamba", 8, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=16)
    engine = Engine(60, cache_groups=(FULL, spec))
    engine.add("a", range(45), 2)
    assert shape(engine.iterate()) == {"a": 40}


def test_a_hit_inside_a_block_goes_on_in_a_copy():
    """Blocks of 8, hashes of 4: 28 tokens of a prompt of 30 are hit, of which 4 lie inside the fourth block."""
    engine = Engine(60, cache_groups=(FULL, STATES), prefix_match_unit=4)
    engine.add("a", range(30), 1)
    assert [sum(step.num_tokens) for step in engine.run() if step.requests] == [24, 4, 2]
    request = engine.add("b", [*range(28), 100, 101], 1)
    (step,) = [step for step in engine.run() if step.requests]
    (admission,) = step.admitted
    assert (admission.num_hit_tokens, step.num_tokens) == (28, [2])
    assert [copy.group_index for copy in step.copies] == [0, 1]
    last_blocks = [table[3] for table in admission.block_tables]
    assert [copy.destination for copy in step.copies] == last_blocks
    assert request.is_finished
    assert engine.serve([*range(28), 102]) == 28


def test_what_goes_on_in_its_own_block_leaves_a_copy_to_the_cache():
    """The state of 28 tokens is kept in a copy when the prompt's last two tokens overwrite it."""
    engine = Engine(60, cache_groups=(FULL, STATES), prefix_match_unit=4)
    request = engine.add("a", range(30), 3)
    for _ in range(2):
        engine.iterate()
    state = request.block_tables[1][3]
    step = engine.iterate()
    (copy,) = step.copies
    assert (copy.group_index, copy.source) == (1, state)
    assert request.block_tables[1][3] == state
    assert engine.pool.keys[state] == 0 != engine.pool.keys[copy.destination]


def test_scratch_blocks_move_on_with_the_newest_state():
    """Two drafts, blocks of 8, chunks of 16: the scratch block that the newest state jumps over goes to the end."""
    spec = CacheGroupSpec("mamba", 8, num_speculative_blocks=2)
    speculation = Speculation(method="ngram", num_speculative_tokens=2)
    engine = Engine(60, cache_groups=(FULL, spec), speculation=speculation, max_num_batched_tokens=16)
    request = engine.add("a", range(40), 2)
    engine.iterate()
    assert request.block_tables[1] == [0, 3, 4, 5]
    engine.iterate()
    assert request.block_tables[1] == [0, 3, 0, 5, 4, 8]
    engine.iterate()
    assert request.block_tables[1] == [0, 0, 0, 5, 4, 8, 9]
