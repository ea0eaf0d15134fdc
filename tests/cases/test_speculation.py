"""Speculative decoding: what must hold whatever the drafts are worth."""

from __future__ import annotations

import math
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.speculation import SPECULATION_METHODS, Speculation
from tests.cases.engine_harness import Engine, shape
from tests.parts import examples


class Speculating(Engine):
    """An engine whose drafts are right as ``num_right`` says, asked with request name and output index."""

    def __init__(self, usable, num_right, speculation, **config):
        super().__init__(usable, speculation=speculation, **config)
        self.num_right = num_right
        self.speculation = speculation

    def process_oldest(self):
        step = self.core.in_flight[0]
        padded = {admission.request for admission in step.admitted}
        tokens = []
        for request, samples in zip(step.requests, step.samples, strict=True):
            number = 0 if request in padded else step.num_drafts.get(request, 0)
            accepted = min(number, self.num_right(request.request_id, request.num_output_tokens))
            first = request.num_output_tokens
            tokens.append([self.token(request, first + index) for index in range(1 + accepted)] if samples else [])
        self.core.process(tokens, [self.speculation.num_speculative_tokens] * len(tokens))

    def token(self, request, index):
        """Outputs depend on nothing but request and index."""
        return 1000 * (int(request.request_id[1:]) + 1) + index

    def iterate(self):
        step = self.core.schedule_next()
        if step is not None:
            self.steps.append(step)
            self.checker.check_step(step)
        if self.core.must_collect():
            self.process_oldest()
        self.checker.check()
        return step


def outputs(engine):
    return {
        name: request.content.token_ids(request.num_prompt_tokens, request.num_tokens)
        for name, request in engine.requests.items()
    }


@pytest.mark.parametrize("method", SPECULATION_METHODS)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_drafts", [1, 3])
def test_right_drafts_divide_the_decode_steps_exactly(method, is_async, num_drafts):
    speculation = Speculation(method=method, num_speculative_tokens=num_drafts)
    engine = Speculating(100, lambda name, index: num_drafts, speculation, async_scheduling=is_async)
    engine.add("r0", 20, 41)
    steps = [step for step in engine.run() if step.requests]
    counts = engine.statistics.speculation
    assert counts.num_drafts == math.ceil(40 / (1 + num_drafts))
    assert counts.num_accepted_tokens == counts.num_draft_tokens == num_drafts * counts.num_drafts
    assert len(steps) - 1 - counts.num_drafts == (1 if is_async else 0)  # async schedules one behind the stop
    assert len(outputs(engine)["r0"]) == 41


@pytest.mark.parametrize("method", SPECULATION_METHODS)
@pytest.mark.parametrize("is_async", [False, True])
def test_wrong_drafts_change_nothing_but_the_tokens_computed(method, is_async):
    speculation = Speculation(method=method, num_speculative_tokens=3)
    runs = []
    for settings_ in (None, speculation):
        if settings_ is None:
            engine = Plain(1000, async_scheduling=is_async)
        else:
            engine = Speculating(1000, lambda name, index: 0, speculation, async_scheduling=is_async)
        order = []
        for index in range(12):
            engine.add(f"r{index}", 10 + 7 * index, 5 + index % 4)
        while engine.core.has_work():
            engine.iterate()
            order += [request.request_id for request in engine.scheduler.take_ended()]
        runs.append((outputs(engine), order))
    assert runs[0] == runs[1]
    assert engine.statistics.speculation.num_accepted_tokens == 0


class Plain(Speculating):
    """The same engine without speculation."""

    def __init__(self, usable, **config):
        super().__init__(usable, lambda name, index: 0, None, **config)

    def process_oldest(self):
        step = self.core.in_flight[0]
        pairs = zip(step.requests, step.samples, strict=True)
        self.core.process([[self.token(one, one.num_output_tokens)] if samples else [] for one, samples in pairs])


BESIDE = {
    "window 5": lambda num_drafts: CacheGroupSpec("sliding_window", 4, 5),
    "window 9": lambda num_drafts: CacheGroupSpec("sliding_window", 4, 9),
    "states": lambda num_drafts: CacheGroupSpec("mamba", 4, num_speculative_blocks=min(num_drafts, 3)),
    "states with checkpoints": lambda num_drafts: CacheGroupSpec("mamba", 4, None, False, min(num_drafts, 3), 1, 1),
    "parts of states": lambda num_drafts: CacheGroupSpec("mamba", 4, num_speculative_blocks=min(num_drafts, 3)),
}
"""A group beside full attention, for so many drafts."""


@examples(60)
@given(
    method=st.sampled_from(SPECULATION_METHODS),
    num_drafts=st.integers(1, 4),
    drops=st.booleans(),
    is_async=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    beside=st.sampled_from(["", "window 5", "window 9", "states", "states with checkpoints", "parts of states"]),
    num_swap_blocks=st.sampled_from([0, 0, 30]),
    usable=st.integers(26, 60),
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
)
def test_invariants_and_outputs_under_random_speculation(
    method, num_drafts, drops, is_async, policy, beside, num_swap_blocks, usable, requests, seed
):
    """All invariants after every step; every request gets exactly its own tokens, whatever was preempted."""
    groups, unit = (), None
    if beside:
        groups = (CacheGroupSpec("full_attention", 4), BESIDE[beside](num_drafts))
        usable *= 2
    if beside == "parts of states":
        unit, num_swap_blocks = 2, 0
    if "states" in beside:  # whose blocks vLLM takes for larger than all drafts
        num_drafts = min(num_drafts, 3)
    engine = Speculating(
        usable,
        lambda name, index: crc32(f"{seed} {name} {index}".encode()) % (num_drafts + 1),
        Speculation(method=method, num_speculative_tokens=num_drafts, disable_lookahead_block_hashes=drops),
        async_scheduling=is_async,
        block_size=4,
        cache_groups=groups,
        prefix_match_unit=unit,
        max_model_len=100,
        scheduling_policy=policy,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        preemption_mode="swap" if num_swap_blocks else "recompute",
        num_swap_blocks=num_swap_blocks,
    )
    for index, (prompt, length, priority) in enumerate(requests):
        engine.add(f"r{index}", [token % 7 for token in range(prompt)], length, priority=priority)
    engine.run()
    for index, (_, length, _) in enumerate(requests):
        request = engine.requests[f"r{index}"]
        assert outputs(engine)[f"r{index}"] == [engine.token(request, position) for position in range(length)]
    assert engine.pool.num_used_blocks == 0


@pytest.mark.parametrize(("max_model_len", "num_tokens"), [(11, 1), (12, 5)])
def test_padding_stays_below_the_model_length(max_model_len, num_tokens):
    """As the real scheduler does: a prompt of 7 whose last token alone is to be computed, beside a decode, k = 4."""
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(60, lambda name, index: 0, speculation, block_size=1, max_model_len=max_model_len)
    engine.add("r0", [1, 2, 3, 4, 5, 6, 7], 4)
    engine.iterate()
    engine.add("r1", [1, 2, 3, 4, 5, 6, 7], 4)
    assert shape(engine.iterate())["r1"] == num_tokens


@pytest.mark.parametrize(
    ("before", "prompt", "num_tokens"),
    [("nothing", 7, 1 + 6), ("nothing", 1, 1), ("cached", 7, 5), ("decoding", 7, 5), ("prefilling", 7, 1)],
)
def test_when_a_single_token_is_padded(before, prompt, num_tokens):
    """k = 4: beside a decode, or if something was hit, but not beside the middle of a prompt."""
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(90, lambda name, index: 0, speculation, block_size=1, max_num_batched_tokens=20)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    if before != "nothing":
        engine.add("r0", tokens, 9 if before == "decoding" else 1)
        engine.iterate()
    if before == "prefilling":
        engine.add("r2", 33)
        engine.iterate()
    engine.add("r1", tokens[:prompt], 4)
    assert shape(engine.iterate())["r1"] == num_tokens


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
@pytest.mark.parametrize(
    ("no_hashes", "no_drop", "lookahead", "drops"),
    [(False, False, 1, False), (True, False, 0, True), (False, True, 0, False), (True, True, 0, False)],
)
def test_the_two_switches(method, no_hashes, no_drop, lookahead, drops):
    speculation = Speculation(
        method=method,
        num_speculative_tokens=2,
        disable_lookahead_block_hashes=no_hashes,
        disable_eagle_block_drop=no_drop,
    )
    assert (speculation.hash_lookahead_tokens, speculation.drops_last_block) == (lookahead, drops)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("threshold", [1, 4])
def test_padding_that_the_long_prefill_limit_would_cut_is_refused(threshold, strict):
    """vLLM ends with an assertion then, but where states are cached: there it leaves the padding out."""
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    settings = {"num_blocks": 60, "speculation": speculation, "vllm_strict": strict}
    EngineConfig(**settings, long_prefill_token_threshold=5)
    with pytest.raises(ValueError, match=r"^long_prefill_token_threshold: expected 0, or more than the 4 drafts"):
        EngineConfig(**settings, long_prefill_token_threshold=threshold)
    states = (CacheGroupSpec("full_attention", 4), CacheGroupSpec("mamba", 4, num_speculative_blocks=4))
    EngineConfig(**settings, cache_groups=states, long_prefill_token_threshold=threshold)


@pytest.mark.parametrize(
    ("speculation", "groups", "message"),
    [
        ({"method": "mtp", "num_nextn_predict_layers": 2}, [("full_attention", 4)], None),
        ({"method": "mtp", "num_nextn_predict_layers": 2}, [("sliding_window", 4, 9)], "expected full attention"),
        (
            {"method": "mtp", "num_nextn_predict_layers": 2},
            [("full_attention", 3, None, True)],
            "at least the 4 tokens",
        ),
        ({"method": "mtp"}, [("full_attention", 3, None, True)], None),
        ({"method": "ngram"}, [("full_attention", 4), ("mamba", 4, None, False, 4, 1, 1)], "fewer drafts than the 4"),
        ({"method": "ngram"}, [("full_attention", 5), ("mamba", 5, None, False, 4, 1, 1)], None),
    ],
)
def test_what_vllm_would_die_of_with_several_modules_or_states_is_refused(speculation, groups, message):
    settings = {
        "num_blocks": 60,
        "speculation": Speculation(num_speculative_tokens=4, **speculation),
        "cache_groups": tuple(CacheGroupSpec(*group) for group in groups),
    }
    if message is None:
        EngineConfig(**settings)
    else:
        with pytest.raises(ValueError, match=f"^speculation: .*{message}"):
            EngineConfig(**settings)


@pytest.mark.parametrize(("prompt", "expected"), [(8, [8]), (10, [7, 3]), (11, [8, 3]), (9, [6, 3]), (17, [8, 6, 3])])
def test_no_chunk_ends_within_what_several_modules_read(prompt, expected):
    """Three modules, a budget of 8: one or two tokens are never left over."""
    speculation = Speculation(method="mtp", num_speculative_tokens=3, num_nextn_predict_layers=3)
    engine = Speculating(60, lambda name, index: 0, speculation, max_num_batched_tokens=8, block_size=4)
    engine.add("r0", prompt, 1)
    assert [sum(step.num_tokens) for step in engine.run() if step.requests] == expected


def test_padding_above_the_budget_stops_admission():
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(60, lambda name, index: 0, speculation, block_size=1, max_num_batched_tokens=9)
    engine.add("r0", [1, 2, 3, 4, 5, 6, 7], 4)
    engine.iterate()
    engine.add("r1", [1, 2, 3, 4, 5, 6, 7], 4)
    assert shape(engine.iterate()) == {"r0": 5}


def test_padding_and_what_a_stop_cuts_off_are_counted():
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(60, lambda name, index: 4, speculation, block_size=1)
    engine.add("r0", [1, 2, 3, 4, 5, 6, 7], 9, stop_token_ids=frozenset({1002}))
    engine.iterate()
    engine.add("r1", [1, 2, 3, 4, 5, 6, 7], 1)
    assert shape(engine.iterate()) == {"r0": 5, "r1": 5}
    counts = engine.statistics.speculation
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (2, 8, 4)
    assert engine.requests["r0"].num_output_tokens == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_batched_tokens": 4, "max_num_seqs": 4}, "expected more than the 4 lookahead slots"),
        ({"cache_groups": (CacheGroupSpec("chunked_local_attention", 4, 8),)}, "which cannot drop blocks"),
    ],
)
def test_what_vllm_would_not_start_with_is_refused(settings, message):
    speculation = Speculation(method="eagle", num_speculative_tokens=4, disable_lookahead_block_hashes=True)
    with pytest.raises(ValueError, match=message):
        EngineConfig(num_blocks=9, speculation=speculation, **settings)


def test_a_stop_token_among_accepted_drafts_ends_the_request_there():
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(50, lambda name, index: 4, speculation)
    request = engine.add("r0", 10, 30, stop_token_ids=frozenset({1002}))
    engine.run()
    assert outputs(engine)["r0"] == [1000, 1001, 1002]
    assert str(request.finish_reason) == "stop"


def test_drafts_are_cut_by_the_model_length_and_dropped_by_a_preemption():
    speculation = Speculation(method="ngram", num_speculative_tokens=4)
    engine = Speculating(50, lambda name, index: 0, speculation, max_model_len=16)
    engine.add("r0", 10, 30)
    engine.iterate()
    assert shape(engine.iterate()) == {"r0": 5}
    assert shape(engine.iterate()) == {"r0": 4}  # position 15 is the last that is computed
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.requests["r0"].num_drafts == 0


@pytest.mark.parametrize(
    ("method", "num_blocks"),
    [("eagle", 3), ("mtp", 3), ("draft_model", 3), ("dflash", 3), ("ngram", 2), ("suffix", 2), ("medusa", 2)],
)
def test_slots_that_are_taken_in_advance(method, num_blocks):
    """A prompt of 7 in blocks of 4, three drafts: 10 or 11 slots for drafters that write keys and values, else 7."""
    speculation = Speculation(method=method, num_speculative_tokens=3)
    engine = Speculating(50, lambda name, index: 0, speculation, block_size=4)
    engine.add("r0", 7, 4)
    engine.iterate()
    assert len(engine.table("r0")) == num_blocks


@pytest.mark.parametrize(("method", "slots"), [("eagle", 3), ("draft_model", 3), ("dflash", 4), ("ngram", 0)])
def test_slots_in_advance_by_method(method, slots):
    assert Speculation(method=method, num_speculative_tokens=3).lookahead_slots == slots


GROUPS = (CacheGroupSpec("full_attention", 4), CacheGroupSpec("sliding_window", 4, 9))


@pytest.mark.parametrize(
    ("switches", "groups", "length", "hit"),
    [
        ({}, (), 12, 8),
        ({"disable_lookahead_block_hashes": True}, (), 12, 4),
        ({"disable_eagle_block_drop": True}, (), 12, 8),
        ({"disable_lookahead_block_hashes": True, "disable_eagle_block_drop": True}, (), 12, 8),
        ({"disable_lookahead_block_hashes": True}, (), 40, 32),
        ({"disable_lookahead_block_hashes": True}, GROUPS, 40, 36),
    ],
)
def test_the_block_that_a_hit_gives_away(switches, groups, length, hit):
    """A prompt that was served before, in blocks of 4: with hashes that look ahead, or none, nothing is given away."""
    speculation = Speculation(method="eagle", num_speculative_tokens=2, **switches)
    engine = Speculating(99, lambda name, index: 0, speculation, block_size=4, cache_groups=groups)
    prompt = list(range(length + 1))
    engine.add("r0", prompt if length == 12 else prompt[:length])
    engine.run()
    engine.add("r1", prompt[:length])
    engine.run()
    assert engine.hits("r1") == [hit]


def test_a_hash_that_looks_ahead_needs_the_next_token():
    """Of 8 tokens in blocks of 4, only the first block has the token behind it."""
    engine = Speculating(50, lambda name, index: 0, Speculation(method="eagle", num_speculative_tokens=2), block_size=4)
    request = engine.add("r0", 8)
    engine.core.schedule_next()
    root, space = engine.scheduler.keys.root_hash, engine.scheduler.keys
    tokens = request.content.token_ids(0, 5)
    assert [space.hash_of_key(key) for key in request.block_keys] == [
        space.hash((root, tuple(tokens[:4]), (None, tokens[4])))
    ]
    assert engine.pool.num_hashed_blocks == 1


def test_a_draft_model_computes_one_token_more_of_each_request():
    speculation = Speculation(method="draft_model", num_speculative_tokens=2)
    engine = Speculating(50, lambda name, index: 0, speculation, max_num_batched_tokens=10)
    for name in ("r0", "r1"):
        engine.add(name, 5)
    assert shape(engine.iterate()) == {"r0": 5, "r1": 3}


def test_dflash_limits_the_requests_that_run():
    speculation = Speculation(method="dflash", num_speculative_tokens=3)
    engine = Speculating(50, lambda name, index: 0, speculation, max_num_batched_tokens=8)
    for name in ("r0", "r1", "r2"):
        engine.add(name, 1, 9)
    assert list(shape(engine.iterate())) == ["r0", "r1"]
