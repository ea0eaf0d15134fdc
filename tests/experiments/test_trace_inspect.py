import json
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.command_line.application import read_words
from kvtwin.experiments.commands.trace_inspect import run
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.traces.facts import inspect_workload
from kvtwin.workloads import (
    ImageSpan,
    Predecessor,
    RequestRecord,
    WorkloadError,
    open_workload,
    write_workload,
)
from kvtwin.workloads.formats.text_lines import open_text
from kvtwin.workloads.multiset import Multiset
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache


@pytest.fixture
def facts_of(public_trace):
    """A function from a name under shared/traces to what `inspect_workload` tells of it."""
    return lambda name, block_size=16: inspect_workload(open_workload(public_trace(name)), block_size)


@pytest.mark.parametrize(
    ("name", "block_size", "full_blocks", "hit_blocks", "hit_tokens"),
    [
        ("mooncake/conversation_trace.jsonl.gz", 512, 276_491, 105_592, 54_063_104),
        ("mooncake/conversation_trace.jsonl.gz", 16, 9_044_013, None, 54_097_440),
        ("mooncake/synthetic_trace.jsonl.gz", 512, 117_888, 77_740, None),
        ("dynamo/mooncake_tiny.jsonl", 512, 297, 50, None),
        ("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz", 16, 15_942, 1_220, None),
        ("llmservingsim/sharegpt-qwen3-300-sps10.relabelled.jsonl.gz", 16, 16_034, 1_278, None),
    ],
)
def test_sharing_of_public_traces(facts_of, name, block_size, full_blocks, hit_blocks, hit_tokens):
    sharing = facts_of(name, block_size)["sharing"]
    assert sharing["full_blocks"] == full_blocks
    assert hit_blocks in (None, sharing["hit_blocks"])
    assert hit_tokens in (None, sharing["hit_tokens"])


def test_statistics_of_the_conversation_trace(facts_of):
    facts = facts_of("mooncake/conversation_trace.jsonl.gz")
    assert (facts["num_requests"], facts["num_distinct_arrivals"], facts["most_at_one_instant"]) == (
        12_031,
        1_180,
        28,
    )
    assert (round(facts["requests_per_s"], 2), round(facts["interarrival_cv"], 2)) == (3.40, 3.03)
    assert facts["input_tokens"]["total"] == 144_793_823
    assert (
        round(facts["input_tokens"]["mean"]),
        facts["input_tokens"]["p50"],
        facts["input_tokens"]["max"],
    ) == (
        12_035,
        6_909,
        126_195,
    )
    assert facts["prompts_known_by"] == {
        "tokens": 0,
        "hash_ids": 12_031,
        "hash_ids_with_outputs": 0,
        "length": 0,
    }


def test_length_only_traces_have_no_hit_rate(facts_of):
    facts = facts_of("azure/AzureLLMInferenceTrace_code.csv.gz")
    assert facts["sharing"] is None
    assert facts["notes"] == ["no prefix information: the hit rate will be unknown"]
    assert round(facts["interarrival_cv"], 2) == 13.15


@given(st.lists(st.integers(0, 30), min_size=1))
def test_statistics_equal_numpys(values):
    numbers = Multiset(Counter(values))
    assert (len(numbers), numbers.total(), numbers.largest()) == (len(values), sum(values), max(values))
    assert numbers.mean() == pytest.approx(np.mean(values))
    assert numbers.deviation() == pytest.approx(np.std(values), abs=1e-6)
    for percent in (0, 12.5, 50, 90, 99, 99.9, 100):
        assert numbers.percentile(percent) == pytest.approx(np.percentile(values, percent))


def blocks_one_by_one(records, block_size):
    """Sharing as it is defined: a block is the id that holds its last token, and its end inside that id."""
    seen, results = set(), []
    for record in records:
        size = record.hash_block_tokens
        ends = range(block_size, min(record.prompt_tokens, len(record.hash_ids) * size) + 1, block_size)
        keys = [(record.hash_ids[(end - 1) // size], (end - 1) % size) for end in ends]
        found = [key in seen for key in keys]
        results.append([*found, False].index(False))
        seen.update(keys)
    return results


@st.composite
def chained_prompts(draw):
    """Prompts cut from one tree of ids: an id has one parent, as in a trace of chained hashes."""
    id_tokens = draw(st.integers(1, 12))
    records, ids = [], {}
    for index in range(draw(st.integers(1, 8))):
        path = draw(st.lists(st.integers(0, 1), min_size=1, max_size=4))
        prompt_tokens = id_tokens * (len(path) - 1) + draw(st.integers(1, id_tokens))
        chain = [ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path))]
        records.append(
            RequestRecord(
                request_id=str(index),
                arrival_ns=0,
                prompt_tokens=prompt_tokens,
                output_tokens=1,
                hash_ids=chain,
                hash_block_tokens=id_tokens,
            )
        )
    return records


@given(chained_prompts(), st.integers(1, 30))
def test_ids_as_a_whole_equal_blocks_one_by_one(records, block_size):
    cache = InfiniteCache()
    found = [cache.add(prefix_chain(record, block_size)) for record in records]
    assert found == blocks_one_by_one(records, block_size)


def test_an_id_after_another_prefix_is_no_hit():
    """As in AIPerf's precise_schedule.jsonl: id 3050 follows two first blocks; no prefix cache can hit it."""

    def chain(*ids):
        record = RequestRecord(
            request_id="a", arrival_ns=0, prompt_tokens=16, output_tokens=1, hash_ids=ids, hash_block_tokens=8
        )
        return prefix_chain(record, 4)

    cache = InfiniteCache()
    assert [cache.add(chain(3005, 3050)), cache.add(chain(3008, 3050))] == [0, 0]


def prompt(tokens, **fields):
    return RequestRecord(
        request_id="a", arrival_ns=0, prompt_tokens=len(tokens), output_tokens=1, token_ids=tokens, **fields
    )


@pytest.mark.parametrize(
    ("fields", "hits"),
    [
        ({}, 4),
        ({"lora_name": "x"}, 0),
        ({"cache_salt": "x"}, 0),
        ({"cache_salt": ""}, 4),
        ({"images": (ImageSpan("x", 5, 2),)}, 1),
    ],
)
@pytest.mark.parametrize("by_ids", [False, True])
def test_lora_salt_and_images_split_the_cache(fields, hits, by_ids):
    def record(**fields):
        if not by_ids:
            return prompt(list(range(16)), **fields)
        return RequestRecord(
            request_id="a",
            arrival_ns=0,
            prompt_tokens=16,
            output_tokens=1,
            hash_ids=[7, 8],
            hash_block_tokens=8,
            **fields,
        )

    cache = InfiniteCache()
    cache.add(prefix_chain(record(), 4))
    assert cache.add(prefix_chain(record(**fields), 4)) == hits
    assert cache.add(prefix_chain(record(**fields), 4)) == 4


def test_known_outputs_are_cached_but_for_the_last_token():
    cache = InfiniteCache()
    cache.add(prefix_chain(prompt([1, 2], output_token_ids=[3, 4, 5, 6]), 2))
    assert cache.add(prefix_chain(prompt([1, 2, 3, 4, 5, 6]), 2)) == 2


def test_the_last_token_of_a_prompt_is_computed(tmp_path):
    write_workload(tmp_path / "w", [prompt([1, 2, 3, 4]), prompt([1, 2, 3, 4])])
    sharing = inspect_workload(open_workload(tmp_path / "w"), 2)["sharing"]
    assert (sharing["hit_blocks"], sharing["hit_tokens"]) == (2, 2)


def inspect(*arguments):
    return run(read_words("trace inspect", [str(argument) for argument in arguments]))


def test_text(tmp_path, capsys):
    path = tmp_path / "w"
    write_workload(path, [prompt(list(range(20))), prompt(list(range(18)), session="s", lora_name="l", priority=1)])
    assert inspect(path, "--block-size", "4") == 0
    assert (
        capsys.readouterr().out
        == f"""\
{path}  (kvtwin); cache rules of vLLM 0.33.0

requests                2, 0 out of order
span                    0.0 s
interarrival CV         none: all arrive together
distinct arrival times  1, up to 2 at one
prompts known by        tokens 2, hash ids 0, length 0
sessions                1
LoRA adapters           1
requests with priority  1

                   mean  p50  p90  p99  max  total
input tokens         19   19   20   20   20     38
output tokens         1    1    1    1    1      2
turns per session     1    1    1    1    1      1

prefix sharing, infinite cache, blocks of 4 tokens
full blocks hit     0 of 9 (0.00%)
prompt tokens hit   0 of 38 (0.00%)
prompts with a hit  0 of 2 (0.00%)
"""
    )


def test_sessions(tmp_path, capsys):
    """Two turns of a parent, ten seconds after the longer of two sub-agents, and one of nobody."""

    def turn(name, session, arrival_ns, think_time_ns=None, **after):
        predecessors = [Predecessor(request_id=of, delay_ns=delay_ns) for of, delay_ns in after.items()]
        fields = {"session": session, "think_time_ns": think_time_ns, "after": tuple(predecessors)}
        return replace(prompt([1, 2, 3], **fields), request_id=name, arrival_ns=arrival_ns)

    second = 10**9
    records = [
        turn("a0", "a", 0),
        turn("b0", "b", second, a0=second),
        turn("c0", "c", second, a0=second),
        turn("b1", "b", 3 * second, 2 * second),
        turn("a1", "a", 13 * second, 10 * second, b1=10 * second, c0=10 * second),
        replace(prompt([1]), request_id="x", arrival_ns=20 * second),
    ]
    write_workload(tmp_path / "w", records)
    facts = inspect_workload(open_workload(tmp_path / "w"), max_model_len=3)
    assert (facts["num_sessions"], facts["num_sub_agents"], facts["num_later_turns"]) == (3, 2, 2)
    assert facts["num_over_length"] == 5
    assert (facts["turns_per_session"]["mean"], facts["turns_per_session"]["max"]) == (5 / 3, 2)
    assert (facts["pauses_s"]["total"], facts["pauses_s"]["p50"], facts["pauses_s"]["max"]) == (14, 1.5, 10)
    assert inspect(tmp_path / "w", "--max-model-len", "3") == 0
    text = capsys.readouterr().out
    assert "prompts too long        5\n" in text
    assert ["pauses", "(s)", "3.5", "1.5", "7.6", "9.8", "10.0", "14"] in [line.split() for line in text.splitlines()]


def test_public_agents(facts_of):
    """The public session with two sub-agents; its prompts grow with the session."""
    facts = facts_of("weka/trace_0291.json", 64)
    assert (facts["num_sessions"], facts["num_sub_agents"], facts["num_later_turns"]) == (3, 2, 29)
    assert (facts["input_tokens"]["total"], facts["num_zero_outputs"], facts["num_over_length"]) == (2_254_119, 0, None)
    assert not facts["sessions_have_starts"]


def test_the_first_weka_sessions_share_what_counting_their_ids_gives(public_trace, tmp_path):
    """All 710 give 90,856,686 hits of 94,310,647 full blocks (0.9634), in 100 s."""
    with open_text(public_trace("weka/kv-cache-tester-710.jsonl.xz")) as text:
        lines = list(islice(text, 5))
    hits = blocks = 0
    for line in lines:
        seen = set()
        for entry in json.loads(line)["requests"]:
            for request in entry.get("requests", [entry]):
                hits += sum(name in seen for name in request["hash_ids"])
                blocks += len(request["hash_ids"])
                seen.update(request["hash_ids"])
    (tmp_path / "w").write_text("".join(lines))
    sharing = inspect_workload(open_workload(tmp_path / "w"), 64)["sharing"]
    assert (sharing["hit_blocks"], sharing["full_blocks"]) == (hits, blocks)


def test_json(tmp_path, capsys):
    write_workload(tmp_path / "w", [prompt([1, 2])])
    assert inspect(tmp_path / "w", "--json", "--format", "kvtwin") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_requests"] == 1
    assert facts["requests_per_s"] is None


def test_errors_are_one_line(tmp_path):
    (tmp_path / "w").write_text("hello")
    with pytest.raises(WorkloadError) as caught:
        inspect(tmp_path / "w")
    assert str(caught.value) == f"{tmp_path / 'w'}: expected at least one request, found none below the columns hello"
    write_workload(tmp_path / "w", [prompt([1, 2])])
    with pytest.raises(UserError, match="--block-size: expected a whole number from 1"):
        inspect(tmp_path / "w", "--block-size", "0")
