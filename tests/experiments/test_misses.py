"""Where misses come from, against the plainest thing that could be right, and as a user sees it."""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.experiments.misses.run_chains import RunChains
from kvtwin.experiments.misses.sources import SOURCES, MissSources
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.prefixes.chains import Chain, prefix_chain
from kvtwin.workloads.prefixes.lru_stack import LruStack
from kvtwin.workloads.prefixes.shared_prefixes import SharedPrefixes
from kvtwin.workloads.request_record import ImageSpan, RequestRecord
from tests.experiments.conftest import SMALL_SERVER, mooncake_row, small_server, tokens
from tests.parts import examples
from tests.sim.test_serving import FixedStepTime

SHARED = range(64)


# ---------------------------------------------------------------- block by block


BLOCK = 4


@st.composite
def workloads(draw):
    """Prompts cut from few tokens, so that they share prefixes; some with a salt or an image."""
    records = []
    for index in range(draw(st.integers(1, 14))):
        prompt = draw(st.lists(st.integers(0, 1), min_size=1, max_size=4 * BLOCK - 1))
        prompt = [token for token in prompt for _ in range(2)][: 4 * BLOCK]
        image = draw(st.sampled_from([None, None, None, "x", "y"]))
        records.append(
            RequestRecord(
                request_id=str(index),
                arrival_ns=index * 10**9,
                prompt_tokens=len(prompt),
                output_tokens=draw(st.integers(1, 2 * BLOCK)),
                token_ids=prompt,
                cache_salt=draw(st.sampled_from([None, None, None, "a", "b"])),
                images=(ImageSpan(image, draw(st.integers(0, len(prompt) - 1)), 1),) if image else (),
            )
        )
    return records


def run(records, num_blocks, **changes):
    config = EngineConfig(
        num_blocks=num_blocks, block_size=BLOCK, max_num_seqs=8, **({"async_scheduling": False} | changes)
    )
    misses = MissSources(config)
    simulation = ServerSimulation(config, SimulatedExecutor(FixedStepTime()), max_concurrency=1)
    simulation.observers.append(misses)
    recorder = simulation.run(records)
    return misses, recorder


def sources_block_by_block(records, hit_tokens):
    """By sets of all blocks seen before; requests come one by one."""
    seen, seen_plainly, counts = set(), set(), Counter()
    for record, hits in zip(records, hit_tokens, strict=True):
        known = list(record.token_ids)
        blocks = [tuple(known[:end]) for end in range(BLOCK, len(known) + 1, BLOCK)]
        identities = [
            (record.cache_salt, tuple(image for image in record.images if image.offset_tokens < len(block)))
            for block in blocks
        ]
        for index, (identity, block) in enumerate(zip(identities, blocks, strict=True)):
            if (index + 1) * BLOCK > record.prompt_tokens - 1:
                break
            if (index + 1) * BLOCK <= hits:
                counts["hit"] += BLOCK
            elif (identity, block) in seen:
                counts["evicted"] += BLOCK
            else:
                counts["isolation" if block in seen_plainly else "cold"] += BLOCK
        counts["alignment"] += record.prompt_tokens - (record.prompt_tokens - 1) // BLOCK * BLOCK
        seen |= set(zip(identities, blocks, strict=True))
        seen_plainly |= set(blocks)
    return counts


@given(workloads(), st.integers(8, 20), st.booleans())
def test_every_token_has_the_source_that_sets_of_blocks_tell(records, num_blocks, asynchronous):
    misses, recorder = run(records, num_blocks, async_scheduling=asynchronous)
    hit_of = dict(zip(recorder.requests.request_id, recorder.requests.hit_tokens, strict=True))
    counts = sources_block_by_block(records, [hit_of[record.request_id] for record in records])
    figures = misses.figures()
    assert {name: figures[f"miss_{name}_tokens"] for name in SOURCES} == {name: counts[name] for name in SOURCES}
    assert figures["possible_hit_tokens"] == counts["hit"] + counts["evicted"]
    assert figures["isolated_by"] == [] or counts["isolation"]


def whole_blocks(record):
    """The record with an output that ends with a block, and a prompt that does not: every block has one place."""
    ragged = record.prompt_tokens if record.prompt_tokens % BLOCK else record.prompt_tokens - 1
    output_tokens = BLOCK - ragged % BLOCK + 1 + BLOCK * (record.output_tokens // BLOCK)
    return RequestRecord(
        request_id=record.request_id,
        arrival_ns=record.arrival_ns,
        prompt_tokens=ragged,
        output_tokens=output_tokens,
        token_ids=record.token_ids[:ragged],
    )


@examples(60)
@given(workloads())
def test_an_evicted_block_hits_at_the_capacity_that_is_told(records):
    records = [whole_blocks(record) for record in records if record.prompt_tokens > 1]
    misses, _ = run(records, 8)
    needed = sorted(set(misses._evicted_needed_blocks))
    evicted = {size: run(records, size)[0].figures()["miss_evicted_tokens"] for size in needed}
    for size in needed:
        before = run(records, size - 1)[0].figures()["miss_evicted_tokens"]
        assert evicted[size] < before, size
    if needed:
        assert evicted[needed[-1]] == 0


@given(st.lists(st.integers(1, 6), max_size=25), st.lists(st.integers(0, 3), min_size=25, max_size=25))
def test_distances_with_several_holders(lengths, lags):
    """Owners let go in the order in which they came; held blocks are newer than all others."""
    stack, held, free = LruStack(), [], []
    for index, (length, lag) in enumerate(zip(lengths, lags, strict=False)):
        chain = Chain([(1, length)], index % 2, length, length)
        blocks = [(1, place) for place in range(length)] + [("private", index)] * (index % 2)
        all_held = {block for _, _, names in held for block in names}
        expected = [
            0 if block in all_held else len(free) - free.index(block) + len(all_held)
            for block in blocks
            if block in all_held or block in free
        ]
        found = []
        for _, number, distance in stack.hold(chain):
            found += [distance + place if distance else 0 for place in range(number)]
        assert found == expected
        free = [block for block in free if block not in blocks]
        held.append((index, chain, blocks))
        while len(held) > lag:
            owner, old, names = held.pop(0)
            stack.let_go(owner, old)
            others = {block for _, _, other in held for block in other}
            free += [block for block in reversed(names) if block not in others]


# ---------------------------------------------------------------- prefixes


@given(st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=4), st.integers(0, 8)), max_size=20))
def test_prefixes_add_up_to_all_hits(hits):
    """Runs of two blocks over a tree of names; a hit may end anywhere."""
    shared, reached = SharedPrefixes(), Counter()
    for index, (path, wanted) in enumerate(hits):
        runs = [(int("".join(map(str, path[: end + 1]))), 2) for end in range(len(path))]
        number = min(wanted, 2 * len(path))
        shared.add(runs, number, str(index))
        blocks = [(name, place) for name, count in runs for place in range(count)][:number]
        reached.update(blocks)
    top = shared.top(1000, 1)
    assert sum(prefix["saved_tokens"] for prefix in top) == reached.total()
    assert [prefix["saved_tokens"] for prefix in top] == sorted(
        (prefix["saved_tokens"] for prefix in top), reverse=True
    )
    for prefix in top:
        own = prefix["prefix_tokens"] - prefix["counted_from_token"]
        assert prefix["saved_tokens"] == own * prefix["requests"] > 0
        path, _ = hits[int(prefix["first_request_id"])]
        for block in range(prefix["counted_from_token"], prefix["prefix_tokens"]):
            name = int("".join(map(str, path[: block // 2 + 1])))
            assert reached[name, block % 2] == prefix["requests"]


def test_the_prefixes_that_save_most(kvtwin, native):
    prompt = list(range(48))
    rows = [tokens(*prompt, 1), tokens(*prompt, 2), tokens(*prompt[:32], 3), tokens(*prompt[:32], 4), tokens(9, 9)]
    outcome = kvtwin("trace", "inspect", native(*rows), "--top-prefixes", "5", "--json")
    first, second = json.loads(outcome.out)["sharing"]["top_prefixes"]
    assert first == {
        "prefix_tokens": 32,
        "counted_from_token": 0,
        "requests": 3,
        "saved_tokens": 96,
        "first_request_id": "r1",
    }
    assert (second["prefix_tokens"], second["counted_from_token"], second["saved_tokens"]) == (48, 32, 16)
    text = kvtwin("trace", "inspect", native(*rows), "--top-prefixes", "1").out
    assert text.splitlines()[-1].split() == ["32", "0", "3", "96", "85.71%", "r1"]
    assert "prefix tokens" not in kvtwin("trace", "inspect", native(*rows)).out


# ---------------------------------------------------------------- whole runs


def sources_of(summary):
    return {name: tokens for name in SOURCES if (tokens := summary[f"miss_{name}_tokens"])}


def total(summary):
    found = summary["prefix_cache_hits"] or 0
    return found + summary["external_prefix_cache_hits"] + sum(sources_of(summary).values())


TIGHT = ("--num-gpu-blocks-override", "80", "--max-model-len", "1024")
RUNS = {
    "evictions": TIGHT,
    "offload tier": (*TIGHT, "--kv-offloading-size", "0.05"),
    "swapping": (*TIGHT, "--preemption-mode", "swap", "--swap-space", "0.1"),
    "several at once": ("--rate-scale", "1000", "--step-time", "roofline", "--long-prefill-token-threshold", "64"),
    "windows": ("--model", "gpt-oss-20b", "--num-gpu-blocks-override", "3000", "--max-model-len", "1024"),
    "windows, all kept": (
        *("--model", "gemma-3-27b-it", "--num-gpu-blocks-override", "600", "--max-model-len", "1024"),
        *("--prefix-cache-retention-interval", "None"),
    ),
    "drafts": (
        *TIGHT,
        "--speculative-config",
        '{"method": "eagle", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic", '
        '"synthetic_acceptance_length": 1.5}',
    ),
    "blocks of 48": (*TIGHT, "--block-size", "48"),
    "priorities": (*TIGHT, "--scheduling-policy", "priority"),
    "warm-up": (*TIGHT, "--warmup-requests", "7"),
}


@pytest.fixture
def chat(write):
    """Prompts that repeat: one document twice, then one of three others, with a question of their own each."""
    documents = [0, 0, 1, 0, 0, 2, 0, 0, 3]
    rows = range(30)
    return write(
        *(mooncake_row(row, hash_ids=[documents[row % 9], 10 + row], input_length=560 + 7 * row) for row in rows)
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_sources_add_up_to_the_prompts(summary_of, chat, name):
    summary = summary_of(chat, *RUNS[name])
    assert total(summary) == summary["prefix_cache_queries"] > 0
    found = sources_of(summary)
    assert not set(found) & {"uncached", "unknown", "isolation"}
    expected = {"evictions": "evicted", "several at once": "unfilled", "windows": "sparse"}.get(name, "cold")
    assert found.get(expected), found
    if name == "windows, all kept":
        assert "sparse" not in found


def test_possible_hits_are_those_of_a_cache_that_never_evicts(kvtwin, summary_of, chat):
    sharing = json.loads(kvtwin("trace", "inspect", chat, "--json").out)["sharing"]
    for options in (TIGHT, ()):
        summary = summary_of(chat, *options)
        assert summary["possible_hit_tokens"] == sharing["hit_tokens"]
        assert summary["possible_hit_rate"] == sharing["hit_token_share"]
    assert summary["prefix_cache_hits"] == summary["possible_hit_tokens"]
    assert set(sources_of(summary)) == {"cold", "alignment"}


def test_caching_off(summary_of, chat):
    summary = summary_of(chat, "--no-enable-prefix-caching")
    found = sources_of(summary)
    assert set(found) == {"cold", "uncached", "alignment"}
    assert sum(found.values()) == summary["total_input_tokens"]
    assert found["uncached"] == summary_of(chat)["prefix_cache_hits"]


def test_lengths_alone_stay_unknown(kvtwin, summary_of, native):
    summary = summary_of(native({}, {}))
    assert sources_of(summary) == {"unknown": 80}
    assert (summary["possible_hit_rate"], summary["miss_cold_tokens"]) == (None, None)
    assert "possible with an infinite cache (%):   unknown" in kvtwin("replay", native({}, {}), *SMALL_SERVER).out


def test_unknown_prompts_beside_known_ones(summary_of, native):
    summary = summary_of(native({}, tokens(*SHARED), tokens(*SHARED)))
    assert sources_of(summary) == {"unknown": 40, "cold": 48, "alignment": 32}


def test_samples_share_what_is_known_by_length_only(summary_of, native):
    summary = summary_of(native({"n": 3}))
    assert summary["prefix_cache_hits"] == 64
    assert sources_of(summary) == {"unknown": 40, "alignment": 16}


@pytest.mark.parametrize("field", [{"cache_salt": "s"}, {"lora": "l"}])
def test_what_only_an_identity_sets_apart(summary_of, native, field):
    rows = [tokens(*SHARED), tokens(*SHARED, 1, **field), tokens(*SHARED, 2)]
    summary = summary_of(native(*rows), "--enable-lora")
    assert (summary["prefix_cache_hits"], summary["miss_isolation_tokens"]) == (64, 64)
    (verdict,) = summary["verdicts"]
    assert "missed only because" in verdict


def test_the_verdict_on_evictions(kvtwin, summary_of, chat):
    (verdict,) = summary_of(chat, *TIGHT, "--max-concurrency", "1")["verdicts"]
    assert "of the prompt tokens were evicted before reuse, half of them reused within" in verdict
    needed = int(verdict.partition("s; ")[2].split()[0].replace(",", ""))
    better = summary_of(chat, *TIGHT, "--max-concurrency", "1", "--num-gpu-blocks-override", str(needed))
    assert better["prefix_cache_hits"] > summary_of(chat, *TIGHT, "--max-concurrency", "1")["prefix_cache_hits"]


# ---------------------------------------------------------------- warm-up


def test_the_warm_up_is_served_and_not_counted(kvtwin, summary_of, chat, tmp_path):
    from kvtwin.experiments.records.reader import Run

    options = (*TIGHT, "--max-concurrency", "1", "--step-time", "roofline")
    assert kvtwin("replay", chat, *small_server(*options), "--out", tmp_path / "all").code == 0
    outcome = kvtwin("replay", chat, *small_server(*options), "--warmup-requests", "10", "--out", tmp_path / "some")
    assert "warm-up: the first 10 requests" in outcome.out
    everything, counted = Run(tmp_path / "all"), Run(tmp_path / "some")
    for name, column in counted.requests.items():
        assert list(column) == list(everything.requests[name][10:]), name
    summary = counted.summary
    assert (summary["num_warmup_requests"], summary["completed"], summary["num_prompts"]) == (10, 20, 30)
    assert summary["prefix_cache_hits"] == int(everything.requests["hit_tokens"][10:].sum())
    assert summary["prefix_cache_queries"] == int(everything.requests["prompt_tokens"][10:].sum())
    assert summary["total_output_tokens"] == 20 * 5
    num_steps = len(counted.steps["start_ns"])
    assert num_steps == summary["steps"] < everything.summary["steps"]
    for name, column in counted.steps.items():
        assert list(column) == list(everything.steps[name][-num_steps:]), name
    assert summary["num_evictions"] < everything.summary["num_evictions"]


def test_a_warm_up_must_leave_something(kvtwin, chat):
    kvtwin("replay", chat, *SMALL_SERVER, "--warmup-requests", "30").complains("--warmup-requests", "30 requests")


# ---------------------------------------------------------------- lifetimes of blocks


def test_lifetimes_are_measured_on_demand(kvtwin, summary_of, chat):
    options = (*TIGHT, "--step-time", "roofline", "--kv-cache-metrics", "--kv-cache-metrics-sample", "1")
    assert not any(name.startswith("kv_block") for name in summary_of(chat, *TIGHT))
    summary = summary_of(chat, *options)
    lifetimes, gaps = summary["kv_block_lifetime_seconds"], summary["kv_block_reuse_gap_seconds"]
    assert lifetimes["count"] == summary["kv_block_idle_before_evict_seconds"]["count"] >= summary["num_evictions"] > 0
    for histogram in (lifetimes, gaps):
        counts = list(histogram["buckets"].values())
        assert counts == sorted(counts)
        assert counts[-1] == histogram["count"]
    assert list(lifetimes["buckets"])[-2:] == ["1800", "+Inf"]
    assert 0 < lifetimes["sum"] < lifetimes["count"] * summary["duration"]
    assert "Block lifetime, mean (s):" in kvtwin("replay", chat, *small_server(*options)).out
    few = summary_of(chat, *options[:-1], "0.2")["kv_block_lifetime_seconds"]["count"]
    assert 0 < few < lifetimes["count"]
    kvtwin("replay", chat, *SMALL_SERVER, "--kv-cache-metrics-sample", "0").complains("--kv-cache-metrics-sample")


def blocks_of(chain):
    """A name for each named block of a chain."""
    return [(name, index) for name, count in chain.runs for index in range(count)]


@pytest.mark.parametrize("seed", range(10))
def test_long_runs_share_what_a_run_per_id_shares(seed):
    """Random prompts that part anywhere, with salts, images before, in and behind ids, and blocks across their ends."""
    random = Random(seed)
    block_size, id_tokens = random.choice([1, 2, 3, 4, 8]), random.choice([2, 4, 6])
    chains, found = RunChains(block_size, PrefixTree()), []
    for number in range(40):
        ids = [random.choice([0, 0, 0, 1]) for _ in range(random.randrange(9))]
        prompt_tokens = max(1, len(ids) * id_tokens - random.randrange(id_tokens))
        offsets = sorted(random.sample(range(prompt_tokens), min(prompt_tokens, random.choice([0, 0, 1, 2]))))
        record = RequestRecord(
            request_id=str(number),
            arrival_ns=0,
            prompt_tokens=prompt_tokens,
            output_tokens=random.randint(1, 20),
            hash_ids=ids[: -(-prompt_tokens // id_tokens)],
            hash_block_tokens=id_tokens,
            cache_salt=random.choice([None, None, "salt"]),
            images=tuple(ImageSpan(random.choice("ab"), offset, 1) for offset in offsets),
        )
        found.append((chains.of(record), prefix_chain(record, block_size)))
    for long, short in found:
        assert replace(long, runs=[]) == replace(short, runs=[])
        for others in found:
            by_long_runs, by_ids = (
                [one == other for one, other in zip(blocks_of(mine), blocks_of(theirs), strict=False)]
                for mine, theirs in zip((long, short), others, strict=True)
            )
            assert by_long_runs == by_ids
