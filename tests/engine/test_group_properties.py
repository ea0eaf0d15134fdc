"""Every kind and mixture of cache groups on random workloads: what must hold whatever happens."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.request import FinishReason
from tests.engine.test_engine_properties import CheckedRun, Operation, configurations, expected_output, workloads
from tests.parts import examples

MAX_MODEL_LEN = 60


@st.composite
def mixtures(draw, block_size):
    """One to four groups with equal blocks, of any kinds."""
    windows = st.builds(CacheGroupSpec, st.just("sliding_window"), st.just(block_size), st.integers(1, 70))
    chunk_tokens = st.integers(1, 8).map(lambda num_blocks: num_blocks * block_size)
    chunks = st.builds(CacheGroupSpec, st.just("chunked_local_attention"), st.just(block_size), chunk_tokens)
    others = st.builds(CacheGroupSpec, st.sampled_from(["full_attention", "mamba"]), st.just(block_size))
    return tuple(draw(st.lists(others | others | windows | chunks, min_size=1, max_size=4)))


@st.composite
def settings_with_groups(draw):
    config = draw(configurations())
    groups = draw(mixtures(config["block_size"]))
    if not config["enable_prefix_caching"]:
        groups = tuple(replace(spec, block_size=MAX_MODEL_LEN) if spec.kind == "mamba" else spec for spec in groups)
    sparse = config["enable_prefix_caching"] and any(spec.is_cached_sparsely for spec in groups)
    intervals = [0, 0, None, *(number * config["block_size"] for number in (1, 3) if sparse)]
    return config | {
        "cache_groups": groups,
        "usable": config["usable"] * len(groups),
        "prefix_cache_retention_interval": draw(st.sampled_from(intervals)),
        "max_model_len": MAX_MODEL_LEN,
        "enable_chunked_prefill": True,
    }


@examples(400)
@given(config=settings_with_groups(), events=workloads())
def test_every_mixture_serves_everybody_and_contradicts_itself_nowhere(config, events):
    """Synchronous and asynchronous, either policy, with aborts and resets; `CheckedRun` checks each iteration."""
    run = CheckedRun(config, events)
    aborted = {event.abort for event in events if isinstance(event, Operation)}
    for index, (request, arrival) in enumerate(zip(run.requests, run.arrivals, strict=True)):
        expected = expected_output(arrival, run.engine.scheduler.config)
        delivered = request.content.token_ids(len(arrival.prompt), request.num_tokens)
        if request.finish_reason is FinishReason.ABORT:
            assert index in aborted
        elif request.finish_reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            assert request.finish_message
        else:
            assert delivered == expected
    assert run.engine.pool.num_free_blocks == run.engine.usable
    if not config["enable_prefix_caching"]:
        assert run.engine.pool.num_hashed_blocks == run.engine.statistics.prefix_cache.hits == 0


@examples(200)
@given(config=configurations(), events=workloads(), surplus=st.integers(0, 100))
def test_a_window_that_nothing_leaves_is_full_attention(config, events, surplus):
    """With every tail kept, a window of max_model_len or more decides as full attention does, block by block.

    A hit of a window needs its whole tail, which then reaches back to block 0: a leading run, like full attention's.
    """
    window = CacheGroupSpec("sliding_window", config["block_size"], config["max_model_len"] + surplus)
    windows, full = (
        CheckedRun(config | {"cache_groups": groups, "prefix_cache_retention_interval": None}, events)
        for groups in ((window,), ())
    )
    assert windows.log == full.log
    assert windows.engine.statistics == full.engine.statistics
