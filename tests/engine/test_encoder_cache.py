"""Images on random workloads: what must hold of the encoder's cache and budget whatever happens."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_hashes import Image
from kvtwin.engine.invariants import InvariantError
from kvtwin.engine.request import FinishReason
from tests.cases.engine_harness import Engine, shape
from tests.engine.test_engine_properties import Arrival, CheckedRun, Operation, configurations, workloads
from tests.parts import examples


@st.composite
def images_in(draw, num_tokens):
    """Images of few contents behind each other, each of one size, with gaps and with text in them."""
    images, start = [], draw(st.integers(0, 3))
    while draw(st.booleans()):
        length = draw(st.integers(1, 9))
        if start + length > num_tokens:
            break
        text = tuple(range(length // 2)) if length % 3 == 0 else ()
        images.append(Image(f"{length} tokens, {draw(st.integers(0, 1))}", start, length, text))
        start += length + draw(st.sampled_from([0, 0, 1, 5]))
    return images


@st.composite
def workloads_with_images(draw):
    events = draw(workloads())
    return [
        replace(event, options=event.options | {"images": draw(images_in(len(event.prompt)))})
        if isinstance(event, Arrival)
        else event
        for event in events
    ]


@st.composite
def settings_with_encoder(draw):
    """Where images are kept whole no chunk is shorter than an image: two requests would wait for ever, also in vLLM."""
    is_whole = draw(st.booleans())
    config = draw(configurations()) | ({"long_prefill_token_threshold": 0} if is_whole else {})
    return config | {
        "max_model_len": 200,
        "enable_chunked_prefill": True,
        "encoder_cache_size": draw(st.sampled_from([5, 9, 9, 14, 30])),
        "max_num_encoder_input_tokens": draw(st.sampled_from([None, 8, 9, 9, 20])),
        "disable_chunked_mm_input": is_whole,
    }


@examples(500)
@given(config=settings_with_encoder(), events=workloads_with_images())
def test_everybody_is_served_and_nothing_stays_held(config, events):
    """Synchronous and asynchronous, either policy, with aborts and resets; `CheckedRun` checks each iteration."""
    run = CheckedRun(config, events)
    aborted = {event.abort for event in events if isinstance(event, Operation)}
    encoder = run.engine.scheduler.encoder
    for index, request in enumerate(run.requests):
        if request.finish_reason is FinishReason.ABORT:
            assert index in aborted
        elif request.finish_reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            assert request.finish_message
        else:
            assert request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert all(image.num_embeddings <= encoder.size for image in request.images)
    assert not encoder.held
    assert encoder.num_reclaimable == encoder.size


@examples(200)
@given(config=configurations(), events=workloads_with_images())
def test_an_encoder_that_is_never_short_of_anything_changes_no_decision(config, events):
    config |= {"max_model_len": 200, "enable_chunked_prefill": True}
    without, ample = (
        CheckedRun(config | {"encoder_cache_size": size, "max_num_encoder_input_tokens": 10**6}, events)
        for size in (0, 10**6)
    )
    assert ample.log == without.log


@examples(100)
@given(config=configurations(), events=workloads())
def test_without_images_an_encoder_changes_no_decision(config, events):
    without, small = (CheckedRun(config | {"encoder_cache_size": size}, events) for size in (0, 1))
    assert small.log == without.log
    assert small.engine.statistics == without.engine.statistics


def test_images_are_encoded_once_and_counted():
    engine = Engine(50, encoder_cache_size=20)
    prompt = engine.fresh(30)
    engine.serve(prompt, images=[Image("cat", 2, 10), Image("dog", 14, 6, (0, 5)), Image("cat", 20, 10)])
    engine.serve(30, images=[Image("dog", 0, 6, (0, 5)), Image("bird", 9, 12)])
    counts = engine.statistics.encoder
    assert (counts.num_encoded_images, counts.num_encoded_embeddings) == (3, 26)
    assert (counts.num_cached_images, counts.num_cached_embeddings) == (2, 14)
    assert [step.dropped_images for step in engine.steps if step.dropped_images] == [["cat"]]
    engine.scheduler.start_counting()
    assert counts.num_encoded_images == counts.num_cached_images == 0


def test_images_in_hit_blocks_are_not_asked_for():
    engine = Engine(50, block_size=4, encoder_cache_size=20)
    prompt, images = engine.fresh(30), [Image("cat", 2, 10)]
    assert engine.serve(prompt, images=images) == 0
    assert engine.serve(prompt, images=images) == 28
    assert engine.statistics.encoder.num_encoded_images == 1
    assert engine.statistics.encoder.num_cached_images == 0


@pytest.mark.parametrize(
    ("settings", "length", "message"),
    [
        ({}, 21, "has an image of 21 embeddings, encoder 20"),
        ({"max_num_encoder_input_tokens": 15}, 16, "has an image of 16 embeddings, encoder 15"),
        (
            {"disable_chunked_mm_input": True, "max_num_batched_tokens": 12},
            13,
            "has an image of 13 tokens, step 12",
        ),
    ],
)
def test_an_image_that_no_step_can_have_is_rejected(settings, length, message):
    """vLLM would let it wait for ever: ``vllm_strict``."""
    engine = Engine(50, encoder_cache_size=20, **settings)
    request = engine.add("large", 40, images=[Image("cat", 3, length)])
    assert (request.finish_reason, request.finish_message) == (FinishReason.REJECTED, message)
    strict = Engine(50, encoder_cache_size=20, vllm_strict=True, **settings)
    strict.add("large", 40, images=[Image("cat", 3, length)])
    strict.run_dry()
    assert strict.unfinished()


def test_another_image_under_the_same_hash_ends_a_request_that_is_alone():
    engine = Engine(50, encoder_cache_size=20)
    engine.serve(20, images=[Image("cat", 2, 10)])
    request = engine.add("other", 20, images=[Image("cat", 2, 9)])
    engine.run()
    assert request.finish_reason is FinishReason.ERROR


def test_another_image_under_the_same_hash_ends_the_request():
    engine = Engine(50, encoder_cache_size=20)
    engine.add("first", 20, 5, images=[Image("cat", 2, 10)])
    second = engine.add("second", 20, 5, images=[Image("cat", 2, 9)])
    engine.run()
    assert (second.finish_reason, second.num_output_tokens) == (FinishReason.ERROR, 0)
    assert second.finish_message == "image cat has 9 embeddings, and 10 in the encoder cache"
    assert engine.requests["first"].num_output_tokens == 5


def test_a_step_stops_before_an_image_that_finds_no_room():
    engine = Engine(50, encoder_cache_size=12, long_prefill_token_threshold=8)
    engine.add("first", 24, images=[Image("cat", 4, 12)])
    engine.add("second", 24, images=[Image("dog", 6, 12)])
    steps = engine.run()
    assert [shape(step) for step in steps[:3]] == [
        {"first": 8, "second": 6},
        {"first": 8},
        {"first": 8, "second": 8},
    ]


def test_the_checker_sees_a_lost_embedding():
    """Negative controls."""
    for spoil in (
        lambda encoder: encoder.evictable.clear(),
        lambda encoder: encoder.entries.update(cat=9),
        lambda encoder: encoder.holders["cat"].add(object()),
        lambda encoder: setattr(encoder, "num_reclaimable", 0),
    ):
        engine = Engine(50, encoder_cache_size=20)
        engine.serve(20, images=[Image("cat", 2, 10)])
        spoil(engine.scheduler.encoder)
        with pytest.raises(InvariantError):
            engine.checker.check()


def test_the_checker_sees_a_token_without_its_embedding(monkeypatch):
    engine = Engine(50, encoder_cache_size=20)
    monkeypatch.setattr(engine.scheduler.encoder, "schedule", lambda request, step: None)
    engine.add("a", 20, images=[Image("cat", 2, 10)])
    with pytest.raises(InvariantError, match="lacks an image"):
        engine.iterate()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_cache_size": -1}, "encoder_cache_size: expected at least 0, got -1"),
        ({"max_num_encoder_input_tokens": 0}, "max_num_encoder_input_tokens: expected at least 1, got 0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        Engine(5, **settings)
