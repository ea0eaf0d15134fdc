"""SGLang's scheduling rules one by one, as its sources state them; and invariants on random workloads."""

import random

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import FinishReason, Request, RequestStatus
from kvtwin.engine.sglang.admission import NewTokenRatio
from kvtwin.engine.sglang.profile import SglangProfile
from kvtwin.engine.sglang.retraction import retraction_order
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord

NO_EOS, EOS = None, 9_999


class Served:
    """A scheduler whose steps are run one by one, and checked."""

    def __init__(self, num_tokens=1000, page_size=1, max_model_len=1000, overlap=False, seats=100, **settings):
        profile = SglangProfile(**settings)
        config = EngineConfig(
            num_blocks=num_tokens // page_size + 1,
            block_size=page_size,
            max_model_len=max_model_len,
            max_num_seqs=seats,
            max_num_batched_tokens=10_000,
            async_scheduling=overlap,
            server=profile,
        )
        self.scheduler = profile.make_scheduler(config, None)
        self.checker = profile.make_checker(self.scheduler)

    def ask(self, name, tokens, max_tokens=4, eos=NO_EOS):
        content = TokenContent(self.scheduler.keys, list(tokens))
        request = Request(name, len(list(tokens)), max_tokens, content, eos_token_id=eos)
        self.scheduler.add_request(request)
        return request

    def step(self, token=7):
        step = self.scheduler.schedule()
        self.checker.check_step(step)
        self.checker.check()
        self.scheduler.update(step, [[token] if samples else [] for samples in step.samples])
        self.checker.check()
        return {request.request_id: count for request, count in zip(step.requests, step.num_tokens, strict=True)}

    def run(self):
        for _ in range(5000):
            if not self.scheduler.has_requests():
                return
            self.step()
        raise AssertionError("no end")

    def hit(self, tokens):
        probe = Request("probe", len(tokens), 1, TokenContent(self.scheduler.keys, tokens))
        return self.scheduler.kv_cache.num_cached_tokens(probe)


def test_a_prefill_comes_before_all_decodes_and_is_not_mixed_with_them():
    served = Served()
    served.ask("a", range(10))
    assert served.step() == {"a": 10}
    served.ask("b", range(100, 105))
    assert served.step() == {"b": 5}
    assert served.step() == {"a": 1, "b": 1}


def test_one_prompt_at_a_time_is_computed_in_chunks_and_others_fill_its_last_one():
    served = Served(chunked_prefill_size=8)
    served.ask("a", range(20))
    served.ask("b", range(100, 110))
    assert [served.step() for _ in range(4)] == [{"a": 8}, {"a": 8}, {"a": 4, "b": 4}, {"b": 6}]
    assert served.step() == {"a": 1, "b": 1}


def test_a_chunk_is_hit_while_its_prompt_is_still_computed():
    served = Served(chunked_prefill_size=8)
    served.ask("a", range(20))
    served.step()
    served.ask("b", range(9))
    served.step()
    assert served.hit(list(range(20))) == 8


def test_what_a_request_leaves_is_its_prompt_and_its_output_but_for_the_last_token():
    served = Served()
    served.ask("a", range(10), max_tokens=4)
    served.run()
    assert served.hit([*range(10), 7, 7, 7, 7, 7]) == 13


def test_hits_are_whole_pages_and_leave_the_last_token():
    served = Served(page_size=4)
    served.ask("a", range(12))
    served.run()
    assert [served.hit(list(range(length))) for length in (12, 13, 11)] == [8, 12, 8]


def test_the_page_of_whoever_computed_the_same_later_is_freed():
    served = Served()
    served.ask("a", range(10), max_tokens=2)
    served.ask("b", range(10), max_tokens=2)
    assert served.step() == {"a": 10, "b": 10}
    assert served.scheduler.kv_cache.tree.num_locked_pages == 10
    served.run()
    assert len(served.scheduler.kv_cache.pool.free_pages) == 1000 - 11


def test_what_running_requests_may_still_say_is_set_aside():
    served = Served(num_tokens=100)
    served.ask("a", range(40), max_tokens=20)
    served.step()
    served.ask("b", range(100, 120), max_tokens=20)  # 20 + 20 + 1 is not less than 60 - 19
    assert served.step() == {"a": 1}
    served = Served(num_tokens=101)
    served.ask("a", range(40), max_tokens=20)
    served.step()
    served.ask("b", range(100, 120), max_tokens=20)
    assert served.step() == {"b": 20}


def test_of_requests_of_unknown_length_a_share_is_set_aside():
    served = Served(num_tokens=100)
    served.ask("a", range(40), max_tokens=20, eos=EOS)  # 0.7 of the 19 left
    served.step()
    served.ask("b", range(100, 125), max_tokens=20, eos=EOS)
    assert served.step() == {"b": 25}


def test_the_ratio_falls_in_600_decode_steps_and_starts_anew_when_idle():
    ratio = NewTokenRatio(1.0)
    assert (ratio.now, ratio.least) == (0.7, pytest.approx(0.098))
    for _ in range(300):
        ratio.decoded()
    assert ratio.now == pytest.approx((0.7 + 0.098) / 2)
    for _ in range(400):
        ratio.decoded()
    assert ratio.now == pytest.approx(0.098)
    ratio.idle()
    assert ratio.now == 0.7
    assert NewTokenRatio(2.0).now == 1.0


def request(name, prompt, output):
    made = Request(name, prompt, 100, content=None)
    made.num_tokens += output
    return made


def test_who_said_least_is_retracted_first_and_of_those_who_asked_most():
    decoding = [request("a", 10, 5), request("b", 30, 2), request("c", 50, 2), request("d", 1, 9)]
    assert [one.request_id for one in retraction_order(decoding)] == ["d", "a", "b", "c"]
    ratio = NewTokenRatio(1.0)
    ratio.retracted(decoding[:2])
    assert ratio.now == (5 + 2 + 20 * 2) / (200 + 1)


def test_a_retracted_request_waits_at_the_end_and_is_computed_again():
    served = Served(num_tokens=200, schedule_conservativeness=0.01)
    asked = []
    for number in range(6):
        asked.append(served.ask(str(number), range(100 * number, 100 * number + 20), max_tokens=60, eos=EOS))
        served.step()
    while not served.scheduler.statistics.num_preemptions:
        assert served.step()
    (retracted,) = [one for one in asked if one.num_preemptions]
    running = [one for one in asked if one.status is RequestStatus.RUNNING]
    assert retracted.num_output_tokens <= min(one.num_output_tokens for one in running)
    assert served.scheduler.waiting[-1] is retracted
    served.run()
    assert [one.finish_reason for one in asked] == [FinishReason.LENGTH] * 6


def test_a_prompt_without_room_for_itself_is_rejected_and_an_output_is_cut():
    served = Served(num_tokens=100)
    too_long = served.ask("a", range(94), max_tokens=5)
    assert too_long.finish_reason is FinishReason.REJECTED
    cut = served.ask("b", range(90), max_tokens=50)
    served.run()
    assert cut.num_output_tokens == 100 - 90 - 1 - 1
    long = Served(max_model_len=50).ask("c", range(40), max_tokens=50)
    assert long.max_tokens == 50 - 1 - 40 - 1


def test_the_longest_cached_prefix_first_under_lpm():
    served = Served(schedule_policy="lpm", chunked_prefill_size=10)
    served.ask("a", range(8), max_tokens=1)
    served.run()
    served.ask("b", range(100, 108))
    served.ask("c", [*range(8), 50, 51])
    assert list(served.step()) == ["c", "b"]


def test_of_those_that_share_a_prefix_one_is_computed_first_under_lpm():
    served = Served(schedule_policy="lpm", seats=2)
    shared = range(40)
    for name, last in (("a", 100), ("b", 200), ("c", 300)):
        served.ask(name, [*shared, last] if name != "c" else range(300, 310), max_tokens=1)
    assert list(served.step()) == ["a", "c"]
    assert served.step() == {"b": 1}


def test_a_finished_length_is_known_before_its_output_comes_in_overlap():
    served = Served(overlap=True)
    asked = served.ask("a", range(4), max_tokens=2)
    steps = [served.scheduler.schedule(), served.scheduler.schedule(), served.scheduler.schedule()]
    assert [step.total_tokens for step in steps] == [4, 1, 0]
    for step in steps[:2]:
        served.scheduler.update(step, [[7]])
        served.checker.check()
    assert asked.finish_reason is FinishReason.LENGTH
    assert served.hit([0, 1, 2, 3, 7, 7]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_invariants_hold_on_random_workloads(policy, page_size, overlap):
    draw = random.Random(policy)
    records = []
    for index in range(40):
        stem = [index % 5] * draw.randint(1, 40)
        tokens = [*stem, *(draw.randrange(1000) for _ in range(draw.randint(0, 20)))]
        records.append(
            RequestRecord(
                request_id=str(index),
                arrival_ns=index * 1_000_000,
                prompt_tokens=len(tokens),
                output_tokens=draw.randint(20, 50),
                token_ids=tokens,
            )
        )
    config = EngineConfig(
        num_blocks=440 // page_size + 1,
        block_size=page_size,
        max_model_len=130,
        max_num_seqs=30,
        max_num_batched_tokens=64,
        async_scheduling=overlap,
        server=SglangProfile(chunked_prefill_size=32, schedule_policy=policy, schedule_conservativeness=0.05),
    )
    executor = SimulatedExecutor(LinearStepTime({"step_ns": 1_000_000}))
    run = ServerSimulation(config, executor, check=True, ignore_eos=False).run(records)
    assert len(run.requests.request_id) == 40
    assert set(run.requests.finish_reason) <= {"stop", "length"}
    assert sum(run.requests.hit_tokens) > 0
    assert page_size > 1 or sum(run.requests.preemptions) > 0
    assert run.num_evictions > 0
