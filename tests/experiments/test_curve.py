"""``kvtwin curve`` and what is behind it, against the plainest thing that could be right."""

import json
from itertools import accumulate

import matplotlib.image
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.curves.facts import Mark, curve_facts
from kvtwin.experiments.curves.simulated_points import simulated_points
from kvtwin.experiments.pictures.curve import capacity_curve
from kvtwin.workloads.formats.growing_prompt import GrowingPrompt
from kvtwin.workloads.formats.registry import open_workload
from kvtwin.workloads.prefixes.capacity_curve import CapacityCurve
from kvtwin.workloads.prefixes.chains import Chain, prefix_chain
from kvtwin.workloads.prefixes.optimal_eviction import OptimalEviction
from kvtwin.workloads.prefixes.sampled_curve import NUM_SAMPLES, SampledCurve
from kvtwin.workloads.request_record import ImageSpan, RequestRecord
from tests.experiments.conftest import mooncake_row, tokens
from tests.parts import slow_but


@st.composite
def streams(draw):
    """Chains over a tree of prefixes: runs of several blocks of which a request may have only the first."""
    chains = []
    for _ in range(draw(st.integers(1, 25))):
        path = draw(st.lists(st.integers(0, 2), min_size=0, max_size=4))
        names = [hash_of(prefix) for prefix in accumulate(([step] for step in path), list.__add__)]
        runs = [(name, 3) for name in names]
        if runs:
            runs[-1] = (runs[-1][0], draw(st.integers(1, 3)))
        num_prompt = sum(number for _, number in runs) + draw(st.integers(0, 2))
        num_private = num_prompt - sum(number for _, number in runs) + draw(st.integers(0, 4))
        chains.append(Chain(runs, num_private, num_prompt, max(0, num_prompt - draw(st.integers(0, 1)))))
    return chains


def hash_of(path):
    return sum((step + 1) * 10**place for place, step in enumerate(path))


def blocks_of(index, chain):
    named = [(name, place) for name, number in chain.runs for place in range(number)]
    return named, [*named, *((("private", index), place) for place in range(chain.num_private_blocks))]


def lru_hits(chains, capacity):
    """Block by block: a list with the block that is evicted next at its front; the deepest is freed first."""
    stack, hits = [], 0
    for index, chain in enumerate(chains):
        named, blocks = blocks_of(index, chain)
        cached = set(stack[-capacity:] if capacity else [])
        found = 0
        while found < len(named) and named[found] in cached:
            found += 1
        hits += min(found, chain.max_hit_blocks)
        touched = set(blocks)
        stack = [block for block in stack if block not in touched] + blocks[::-1]
    return hits


def best_hits(chains, capacity):
    """Block by block: keep what is used soonest, and of equal next uses what is less deep."""
    requests = [blocks_of(index, chain) for index, chain in enumerate(chains)]
    cached, hits = {}, 0
    for index, (named, _) in enumerate(requests):
        found = sum(cached.pop(block, None) is not None for block in named)
        hits += min(found, chains[index].max_hit_blocks)
        for depth, block in enumerate(named):
            later = [user for user in range(index + 1, len(chains)) if block in requests[user][0]]
            if later:
                cached[block] = (later[0], depth)
        while len(cached) > capacity:
            del cached[max(cached, key=cached.get)]
    return hits


@given(streams())
def test_the_curve_equals_a_cache_of_every_size(chains):
    curve = CapacityCurve(chains)
    sizes = range(curve.num_distinct_blocks + 2)
    assert [curve.hit_blocks(size) for size in sizes] == [lru_hits(chains, size) for size in sizes]
    assert curve.num_distinct_blocks == len(
        {block for i, chain in enumerate(chains) for block in blocks_of(i, chain)[1]}
    )
    assert curve.most_hit_blocks == lru_hits(chains, 10**6)
    enough = curve.capacity_for(0.9)
    assert curve.hit_blocks(enough) >= 0.9 * curve.most_hit_blocks
    assert enough == 0 or curve.hit_blocks(enough - 1) < 0.9 * curve.most_hit_blocks


@given(streams(), st.integers(0, 40))
def test_optimal_eviction_equals_belady_block_by_block(chains, capacity):
    optimal = OptimalEviction(chains)
    assert optimal.hit_blocks(capacity) == best_hits(chains, capacity)
    assert optimal.hit_blocks(capacity) >= CapacityCurve(chains).hit_blocks(capacity)
    assert optimal.hit_blocks(10**6) == CapacityCurve(chains).most_hit_blocks


@given(streams())
def test_samples_that_make_up_everything_find_every_hit(chains):
    sampled, exact = SampledCurve(chains, 1.0), CapacityCurve(chains)
    assert sampled.hit_blocks(10**6)[0] == pytest.approx(exact.most_hit_blocks)
    assert len(sampled._curves) == NUM_SAMPLES


def record(prompt_tokens, **fields):
    return RequestRecord(request_id="a", arrival_ns=0, prompt_tokens=prompt_tokens, output_tokens=1, **fields)


def names(prompt, block_size=4):
    return [name for name, _ in prefix_chain(prompt, block_size).runs]


def test_equal_prefixes_and_only_they_have_equal_names():
    def by_tokens(token_ids, **fields):
        return names(record(len(token_ids), token_ids=token_ids, **fields))

    one = by_tokens(range(12))
    assert by_tokens([*range(8), 99, 98, 97, 96])[:2] == one[:2]
    assert not set(by_tokens([*range(8), 99, 98, 97, 96])[2:]) & set(one)
    assert not set(by_tokens([1, *range(1, 12)])) & set(one)
    for other in ({"cache_salt": "x"}, {"lora_name": "x"}):
        assert not set(by_tokens(range(12), **other)) & set(one)
    images = by_tokens(range(12), images=(ImageSpan("x", 5, 2),))
    assert images[0] == one[0]
    assert not set(images[1:]) & set(one)


def test_an_id_names_its_whole_prefix_and_outputs_are_private():
    def chain(*ids, prompt_tokens=20, output_tokens=1):
        made = record(prompt_tokens, hash_ids=ids, hash_block_tokens=8)
        made.output_tokens = output_tokens
        return prefix_chain(made, 4)

    assert [number for _, number in chain(1, 2, 3).runs] == [2, 2, 1]
    assert chain(1, 2, 3).runs[:2] == chain(1, 2, 4).runs[:2]
    assert chain(1, 2, 3).runs[1] != chain(7, 2, 3).runs[1]
    assert (chain(1, 2, 3, output_tokens=9).num_private_blocks, chain(1, 2, 3).max_hit_blocks) == (2, 4)


# ---------------------------------------------------------------- the command


@pytest.fixture
def sharing(write):
    """20 prompts of 1,000 tokens that share their first 512."""
    return write(*(mooncake_row(index) for index in range(20)))


def test_a_growing_prompt_is_one_run_that_later_turns_have_more_of():
    prompt = GrowingPrompt([1, 2], 8, 9)
    chains = []
    for new, output in ((12, 9), (4, 1)):
        prompt_tokens, hash_ids, hash_id_ends = prompt.add_turn(new, output)
        made = record(prompt_tokens, hash_ids=hash_ids, hash_id_ends=hash_id_ends)
        made.output_tokens = output
        chains.append(prefix_chain(made, 4))
    first, later = chains
    assert [number for _, number in first.runs] == [2, 1, 2]  # 20 of 21 tokens: the output's last is not computed
    assert [number for _, number in later.runs] == [2, 1, 3]
    assert [name for name, _ in first.runs] == [name for name, _ in later.runs]
    assert (first.num_private_blocks, later.num_private_blocks) == (0, 0)
    assert (first.num_prompt_blocks, later.max_hit_blocks) == (3, 6)


def test_one_at_a_time_a_replay_hits_what_the_curve_says(kvtwin, sharing):
    sizes = (70, 100, 400, 2000)
    facts = json.loads(kvtwin("curve", sharing, "--at", ",".join(map(str, sizes)), "--json").out)
    for point in facts["points"]:
        outcome = kvtwin(
            "replay", sharing, "--num-gpu-blocks-override", point["blocks"], "--max-model-len", 1024,
            "--step-time", "zero", "--max-concurrency", 1, "--json",
        )  # fmt: skip
        assert json.loads(outcome.out)["prefix_cache_hits"] == point["hit_tokens"], point
    assert [point["blocks"] for point in facts["points"]] == list(sizes)
    assert facts["points"][-1]["hit_rate"] == facts["ceiling_hit_rate"] == 19 * 512 / 20_000


def test_marks_are_the_sizes_of_servers(kvtwin, sharing):
    options = (
        "--model",
        "Llama-3.1-8B",
        "--gpu",
        "l40s,h200",
        "--memory-fractions",
        "0.3,0.9",
        "--max-model-len",
        8192,
    )
    facts = json.loads(kvtwin("curve", sharing, *options, "--json").out)
    assert [mark["name"] for mark in facts["marks"]] == ["l40s at 0.3", "l40s at 0.9", "h200 at 0.3", "h200 at 0.9"]
    size = json.loads(
        kvtwin("size", *options[:2], "--gpu", "h200", "--gpu-memory-utilization", 0.9, *options[-2:], "--json").out
    )
    assert facts["marks"][3]["blocks"] == size["num_blocks"]
    text = kvtwin("curve", sharing, *options).out
    assert "\nl40s at 0.3: cannot hold a request of max_model_len" in text
    assert "optimal: clairvoyant" in text


def test_a_sample_says_how_far_off_it_may_be(kvtwin, sharing):
    facts = json.loads(kvtwin("curve", sharing, "--sample", 0.5, "--at", 2000, "--json").out)
    (point,) = facts["points"]
    assert abs(point["hit_rate"] - 19 * 512 / 20_000) <= 4 * point["hit_rate_standard_error"] + 1e-9
    assert "one standard error" in kvtwin("curve", sharing, "--sample", 0.5).out


def test_what_a_server_refuses_is_left_out(kvtwin, native):
    path = native(tokens(*range(32)), tokens(*range(32)), {"output_tokens": 0}, {"prompt_tokens": 5000})
    facts = json.loads(kvtwin("curve", path, "--max-model-len", 100, "--json").out)
    assert (facts["num_requests"], facts["num_refused"], facts["queried_tokens"]) == (2, 2, 64)
    assert facts["ceiling_hit_rate"] == 16 / 64


@pytest.fixture
def replayed(kvtwin, sharing, tmp_path):
    """Folders of a run and of a sweep of the same requests, and the curve's options for them."""
    server = ("--max-model-len", 1024, "--max-concurrency", 1)
    kvtwin("replay", sharing, *server, "--num-gpu-blocks-override", 90, "--out", tmp_path / "run")
    spec = tmp_path / "spec.yaml"
    options = {"max-model-len": 1024, "max-concurrency": 1}
    axes = {"num-gpu-blocks-override": [20, 70, 400]}  # the first cannot be
    spec.write_text(yaml.safe_dump({"trace": str(sharing), "options": options, "axes": axes}))
    kvtwin("sweep", spec, "--out", tmp_path / "sweep")
    return tmp_path / "run", tmp_path / "sweep"


@pytest.mark.parametrize("kind", slow_but(["png"], ["png", "svg"]))
@pytest.mark.slow
def test_a_picture_of_the_curve_with_replays_on_it(kvtwin, sharing, replayed, tmp_path, kind):
    picture = tmp_path / f"curve.{kind}"
    options = ("--model", "Llama-3.1-8B", "--gpu", "l40s", "--memory-fractions", "0.3,0.9", "--runs", *replayed)
    contents = set()
    for _ in range(2):
        picture.unlink(missing_ok=True)
        assert kvtwin("curve", sharing, "--max-model-len", 8192, *options, "--plot", picture).code == 0
        contents.add(picture.read_bytes())
    assert len(contents) == 1
    if kind == "png":
        assert min(matplotlib.image.imread(picture).shape[:2]) > 200
    else:
        assert picture.read_text().rstrip().endswith("</svg>")


@pytest.mark.slow
def test_the_picture_shows_what_was_computed(kvtwin, sharing, replayed):
    facts = curve_facts(
        open_workload(str(sharing), None), 16, 1024, [], [Mark("large", 500), Mark("none", None)], None, with_line=True
    )
    points = {folder.name: simulated_points(folder, facts) for folder in replayed}
    assert [blocks for blocks, _ in points["run"] + points["sweep"]] == [90, 70, 400]
    (axis,) = capacity_curve(facts, points).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axis.lines}
    ceiling = 100 * facts["ceiling_hit_rate"]
    assert drawn["LRU, as vLLM evicts"] == [[p["blocks"], 100 * p["hit_rate"]] for p in facts["line"]]
    assert drawn["clairvoyant: no policy beats it"] == [
        [p["blocks"], 100 * p["optimal_hit_rate"]] for p in facts["line"]
    ]
    assert {y for _, y in drawn[f"nothing evicted: {ceiling:.1f} %"]} == {ceiling}
    assert drawn["replayed: sweep"] == [[blocks, 100 * rate] for blocks, rate in points["sweep"]]
    assert [text.get_text() for text in axis.texts] == ["large"]
    sizes, rates = zip(*points["run"], *points["sweep"], strict=True)  # one at a time, they lie on the curve
    exact = curve_facts(open_workload(str(sharing), None), 16, 1024, list(sizes), [], None)
    assert [point["hit_rate"] for point in exact["points"]] == pytest.approx(rates)


# ---------------------------------------------------------------- behind a router


@pytest.mark.parametrize("router", slow_but(["round-robin"], ["round-robin", "random", "session", "prefix-aware"]))
def test_one_at_a_time_replicas_hit_as_the_curve_says(kvtwin, sharing, router):
    words = ("--data-parallel-size", 2, "--router", router, "--json")
    curve = json.loads(kvtwin("curve", sharing, "--max-model-len", 1024, "--at", "70,90,400", *words).out)
    assert (curve["data_parallel_size"], curve["router"]) == (2, router)
    for point in curve["points"]:
        server = ("--max-model-len", 1024, "--num-gpu-blocks-override", point["blocks"], "--rate-scale", 0.01)
        replayed = json.loads(kvtwin("replay", sharing, *server, *words).out)
        assert replayed["prefix_cache_hits"] == point["hit_tokens"] > 0
        assert replayed["one_cache_hit_rate"] == pytest.approx(point["one_cache_hit_rate"])
        assert point["hit_rate"] <= point["optimal_hit_rate"] <= curve["ceiling_hit_rate"]
    estimated = json.loads(kvtwin("curve", sharing, "--at", "70,90,400", "--sample", 1, *words).out)
    assert estimated["distinct_blocks"] == pytest.approx(curve["distinct_blocks"], rel=0.05)


def test_the_picture_has_the_cache_that_all_could_share(kvtwin, sharing, tmp_path):
    words = ("--data-parallel-size", 2, "--router", "session", "--out", tmp_path / "curve")
    assert "2 replicas, router session: blocks are those of each" in kvtwin("curve", sharing, *words).out
    assert kvtwin("plot", tmp_path / "curve", "--out", tmp_path / "plots").code == 0
    facts = json.loads((tmp_path / "curve" / "result.json").read_text())["facts"]
    (axis,) = capacity_curve(facts, {}).axes
    assert "one cache as large as all together, LRU" in [line.get_label() for line in axis.lines]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-dp", 2], "--router vllm-dp: looks at what becomes of requests at the replicas"),
        (["-dp", 2, "--router", "oracle"], "use one of round-robin, random, session, prefix-aware, or `kvtwin replay`"),
        (["--router", "session"], "--router session: needs --data-parallel-size"),
        (["--replicas", "x.yaml"], "--replicas: a curve has one size for all replicas"),
        (["-dp", 2, "--router", "session", "--api-server-count", 2], "--api-server-count: session has no API servers"),
        (
            ["-dp", 2, "--router", "session", "--router-config", '{"x": 1}'],
            "--router-config: x: the router session has",
        ),
    ],
)
def test_routers_of_which_there_is_no_curve(kvtwin, sharing, words, complaint):
    kvtwin("curve", sharing, *words).complains(complaint)


def tells(outcome, *words):
    """That a picture cannot be drawn, after the result that it would have shown."""
    assert (outcome.code, outcome.out.startswith("kvtwin curve: ")) == (2, True)
    for word in words:
        assert word in outcome.err


@pytest.mark.slow
def test_pictures_that_cannot_be_drawn(kvtwin, write, sharing, replayed, tmp_path):
    kvtwin("curve", sharing, "--plot", "x.pdf").complains("--plot x.pdf", ".png or .svg")
    kvtwin("curve", sharing, "--runs", replayed[0]).complains("--runs", "--plot")
    kvtwin("curve", sharing, "--plot", tmp_path / "absent" / "x.png").complains("--plot", "absent")
    to = ("--plot", tmp_path / "x.png", "--runs")
    tells(kvtwin("curve", sharing, *to, tmp_path), str(tmp_path), "not the folder of a run")
    tells(kvtwin("curve", sharing, "--block-size", 32, *to, replayed[0]), "run", "16 tokens per block", "32")
    fewer = write(*(mooncake_row(index) for index in range(10)), name="fewer.jsonl")
    tells(kvtwin("curve", fewer, *to, replayed[1]), "sweep: does not match the curve", "20000 prompt tokens", "10000")
    assert not (tmp_path / "x.png").exists()


def test_a_sample_is_drawn_with_its_error(kvtwin, sharing, tmp_path):
    assert kvtwin("curve", sharing, "--sample", 0.5, "--plot", tmp_path / "x.png").code == 0


def test_mistakes(kvtwin, sharing, native):
    kvtwin("curve", native({}, {})).complains("no prefix information")
    kvtwin("curve", sharing, "--at", "10,x").complains("--at", "'x'")
    kvtwin("curve", sharing, "--at", "1").complains("--at", "from 2")
    kvtwin("curve", sharing, "--gpu", "h200").complains("--model")
    kvtwin("curve", sharing, "--model", "Llama-3.1-8B", "--gpu", "h200", "--memory-fractions", "2").complains(
        "--memory-fractions"
    )
