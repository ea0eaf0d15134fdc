"""``kvtwin replay --allocator``: the same trace, without pages."""

import json
from pathlib import Path

import pytest

from kvtwin.engine.settings import ALLOCATORS
from tests.experiments.conftest import SMALL_SERVER, small_server

CONTIGUOUS = [name for name in ALLOCATORS if name != "paged"]
CROWDED = ("--request-rate", "inf", "--num-gpu-blocks-override", "257", "--step-time", "roofline")


@pytest.fixture
def summary(kvtwin, native):
    """Sixty requests at once to a pool of 4,096 slots."""
    trace = native(*({"prompt_tokens": 100 + 13 * i % 200, "output_tokens": 20 + 17 * i % 90} for i in range(60)))

    def replay(allocator, *options):
        words = small_server(*CROWDED, "--allocator", allocator, "--check", "--json", *options)
        outcome = kvtwin("replay", trace, *words)
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)

    return replay


def test_paging_holds_most_and_wastes_least(summary):
    of = {name: summary(name) for name in ALLOCATORS}
    for name, figures in of.items():
        assert figures["completed"] == 60
        assert figures["num_gpu_blocks"] - 1 == (256 if name == "paged" else 4096)
        for kind in ("mean", "mean_while_waiting", "peak"):
            parts = [value for key, value in figures.items() if key.startswith("kv_memory_") and key.endswith(kind)]
            assert len(parts) == 5
            assert sum(parts) == pytest.approx(1)
    live = [of[f"contiguous-{name}"]["kv_memory_live_mean_while_waiting"] for name in ("max", "pow2", "oracle")]
    assert live == sorted(live)
    assert live[-1] < of["paged"]["kv_memory_live_mean_while_waiting"]
    batch = [of[f"contiguous-{name}"]["mean_running_while_waiting"] for name in ("max", "pow2", "oracle")]
    assert batch == sorted(batch)
    assert batch[0] == of["contiguous-max"]["max_running_requests"] == 1, "one request of 4,096 fills the pool"
    assert of["contiguous-oracle"]["kv_memory_internal_mean"] == 0
    assert of["paged"]["kv_memory_reserved_mean"] == 0
    assert all(of[name]["num_preemptions"] == 0 for name in CONTIGUOUS)


@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_the_block_size_decides_only_how_many_slots_there_are(summary, allocator):
    small = summary(allocator)
    large = summary(allocator, "--block-size", "64", "--num-gpu-blocks-override", "65")
    differ = {key for key in small if small[key] != large[key]} - {"date"}
    assert all(key.startswith("max_concurrency_at_") for key in differ), differ  # vLLM's start-up lines: of the pages


@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_a_heading_says_what_was_simulated(kvtwin, native, allocator):
    heading = kvtwin("replay", native({}), *SMALL_SERVER, "--allocator", allocator).out
    assert f"memory  {allocator}: a range per request, of 31,984 slots; no prefix caching\n" in heading
    assert "memory  " not in kvtwin("replay", native({}), *SMALL_SERVER).out


@pytest.mark.parametrize("allocator", CONTIGUOUS)
def test_shared_prefixes_are_refused(kvtwin, native, allocator):
    run = kvtwin("replay", native({}), "--allocator", allocator, "--enable-prefix-caching")
    run.complains("--enable-prefix-caching", allocator, "shares nothing")
    assert kvtwin("replay", native({}), *SMALL_SERVER, "--allocator", allocator, "--no-enable-prefix-caching").code == 0


def test_lengths_that_nobody_knows_are_refused_where_they_decide(kvtwin, native):
    for allocator in ("contiguous-pow2", "contiguous-oracle"):
        kvtwin("replay", native({}), "--allocator", allocator, "--no-ignore-eos").complains(
            allocator, "--no-ignore-eos"
        )
    run = kvtwin("replay", native({}), *SMALL_SERVER, "--allocator", "contiguous-max", "--no-ignore-eos", "--check")
    assert run.code == 0


def test_an_unknown_allocator_is_refused(kvtwin, native):
    kvtwin("replay", native({}), "--allocator", "buddy").complains("--allocator", "'buddy'")


def test_nothing_is_said_of_memory_that_nobody_waited_for(summary_of, native):
    figures = summary_of(native({}))
    assert figures["kv_memory_live_mean_while_waiting"] is figures["mean_running_while_waiting"] is None
    assert figures["waiting_time_share"] == 0
    assert figures["kv_memory_live_peak"] > 0


def test_the_comparison_of_the_document_can_be_run(kvtwin, native):
    spec = Path(__file__).parents[2] / "experiments" / "configs" / "contiguous-vs-paged.yaml"
    outcome = kvtwin("sweep", spec, native({}), "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("kvtwin replay") == 11


def test_models_of_several_groups_are_refused(kvtwin, native):
    run = kvtwin("replay", native({}), *SMALL_SERVER, "--model", "gpt-oss-120b", "--allocator", "contiguous-max")
    run.complains("--allocator contiguous-max", "one cache group")


def test_several_groups_have_no_single_share(summary_of, native):
    figures = summary_of(native({}), "--model", "gpt-oss-120b")
    assert figures["kv_memory_live_mean"] is None
    assert figures["waiting_time_share"] == 0
