"""Check 2: it passes for what requests really said in a crowd, and fails for anything else."""

from collections import defaultdict
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'kvtwin[gpu]'")

import torch

from kvtwin.gpu.alone import Transcript, say_alone
from kvtwin.gpu.executor import DeviceExecutor
from kvtwin.gpu.sampling import sample
from kvtwin.gpu.token_check import Findings, check_tokens
from tests.gpu.device_run import DeviceRun, alone, crowd, small_decoder
from tests.parts import slow_but

MEMORIES = ({}, {"preemption_mode": "swap", "num_swap_blocks": 40}, {"num_offload_blocks": 12})


@pytest.fixture(scope="module")
def decoder():
    return small_decoder()


class Served:
    """A crowd that was served, and its transcripts."""

    def __init__(self, decoder, crowd_seed, memory=0, executor_class=DeviceExecutor, *, poisons=False, **options):
        self.decoder = decoder
        self.config, self.arrivals = crowd(crowd_seed, memory=MEMORIES[memory])
        self.poisons = poisons
        run = DeviceRun(decoder, self.config, executor_class, **options)
        if poisons:
            run.executor.poison(run.scheduler.kv_cache.pool)
        outputs = run.serve(self.arrivals)
        self.executor = run.executor
        logits = defaultdict(list)
        for step in run.executor.executed:
            for name, of_request in zip(step.request_ids, step.logits, strict=True):
                logits[name] += of_request
        self.transcripts = [
            Transcript(name, self.arrivals[int(name.partition(".")[0])].prompt, output, logits[name])
            for name, output in outputs.items()
        ]

    def check(self, transcripts=None):
        return check_tokens(
            self.decoder,
            self.executor,
            self.config,
            self.transcripts if transcripts is None else transcripts,
            poisons=self.poisons,
        )


@pytest.fixture(scope="module")
def served(decoder):
    return Served(decoder, 0)


@pytest.mark.parametrize("memory", range(len(MEMORIES)))
@pytest.mark.parametrize("seed", slow_but([0], range(4)))
def test_what_a_crowd_said_passes(decoder, seed, memory):
    served = Served(decoder, seed, memory, poisons=seed % 2 == 0)
    check = served.check()
    assert check.passed, check
    assert check.num_requests == len(served.arrivals)
    assert check.found.num_tokens == sum(arrival.max_tokens for arrival in served.arrivals)
    assert 0 < check.noise < 1e-4
    assert check.found.largest_difference < 1e-4


@pytest.mark.parametrize("temperature", slow_but([1e-45, 1.0], [1e-45, 0.01, 1.0, 100.0]))
def test_what_is_drawn_is_drawn_again(decoder, temperature):
    served = Served(decoder, 2, temperature=temperature, seed=5)
    check = served.check()
    assert check.passed, check
    assert check.found.num_ties <= 1
    if temperature < 0.01:  # as if greedy
        return
    served.executor.seed = 6
    assert served.check().found.num_wrong_tokens > check.found.num_tokens * min(0.9, temperature / 10)


SAMPLE_FAULTS = {
    "other seeds": lambda logits, temperature, seeds, positions: (logits, temperature, seeds.flip(0), positions),
    "another position": lambda logits, temperature, seeds, positions: (logits, temperature, seeds, positions + 1),
    "another temperature": lambda logits, temperature, seeds, positions: (logits, 2.0, seeds, positions),
    "no noise": lambda logits, temperature, seeds, positions: (logits, 0.0, seeds, positions),
    "not the largest": lambda logits, temperature, seeds, positions: (-logits, temperature, seeds, positions),
}


@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.float32, torch.bfloat16]), ids=str)
@pytest.mark.parametrize("fault", SAMPLE_FAULTS)
def test_what_is_drawn_otherwise_is_found(monkeypatch, fault, dtype):
    monkeypatch.setattr("kvtwin.gpu.executor.sample", lambda *inputs: sample(*SAMPLE_FAULTS[fault](*inputs)))
    check = Served(small_decoder(dtype=dtype), 1, temperature=1.0).check()
    assert check.found.num_wrong_logits == 0  # they are right: what is said to them is not
    assert check.found.num_wrong_tokens > 10


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_many_tokens_are_ties(dtype):
    """A crowd's noise is within the tolerance, and a wrong block is far beyond."""
    decoder = small_decoder(dtype=dtype)
    for seed in range(4):
        check = Served(decoder, seed).check()
        assert check.passed, check
        assert check.found.largest_difference < check.found.tolerance / 2
    found = [Served(decoder, seed, 0, ForgetsBlocks).check().passed for seed in range(4)]
    assert found.count(False) >= 2


def test_a_wrong_token_is_found(served):
    changed = list(served.transcripts)
    said = changed[3]
    output = [*said.output[:1], (said.output[1] + 1) % 256, *said.output[2:]]
    changed[3] = replace(said, output=output)
    check = served.check(changed)
    assert not check.passed
    assert check.found.num_wrong_tokens >= 1
    assert check.found.first_wrong == f"request {said.request_id}, output token 1"


@pytest.mark.parametrize("value", [0.01, float("nan"), float("inf")])
def test_a_wrong_logit_is_found(served, value):
    changed = list(served.transcripts)
    logits = list(changed[5].logits)
    logits[0] += value
    changed[5] = replace(changed[5], logits=logits)
    found = served.check(changed).found
    assert (found.allowed, found.num_wrong_logits, found.num_wrong_tokens) == (False, 1, 0)
    assert found.first_wrong == f"request {changed[5].request_id}, output token 0"


def test_equal_transcripts_are_computed_once(served, monkeypatch):
    lengths = []
    dense_logits = type(served.decoder).dense_logits

    def counting(decoder, token_ids, first):
        lengths.append(len(token_ids))
        return dense_logits(decoder, token_ids, first)

    monkeypatch.setattr(type(served.decoder), "dense_logits", counting)
    once = served.check()
    number = len(lengths)
    thrice = served.check(served.transcripts * 3)
    assert len(lengths) == 2 * number
    assert thrice.passed
    assert thrice.found.num_tokens == 3 * once.found.num_tokens


class ForgetsBlocks(DeviceExecutor):
    """Writes the tenth new block of a run to the table of its request as block 1."""

    num_new = 0

    def submit(self, step):
        for _, (blocks,) in step.new_blocks:
            self.num_new += 1
            if self.num_new == 10:
                blocks[0] = 1 if blocks[0] != 1 else 2
        return super().submit(step)


def test_an_executor_that_uses_a_wrong_block_once_is_found(decoder):
    found = [Served(decoder, seed, 0, ForgetsBlocks).check().passed for seed in range(6)]
    assert not all(found)
    assert found.count(False) >= 4


def test_a_model_that_does_not_look_back_proves_nothing():
    decoder = small_decoder()
    for layer in decoder.weights.layers:
        layer.output.zero_()
    check = Served(decoder, 0).check()
    assert (check.found.allowed, check.notices_loss, check.passed) == (True, False, False)


def rounding_to(unit):
    class RoundsCoarsely(DeviceExecutor):
        """Keeps logits as multiples of ``unit``."""

        def collect(self, ticket):
            result = super().collect(ticket)
            last = self.executed[-1]
            logits = [[unit * round(logit / unit) for logit in of_request] for of_request in last.logits]
            self.executed[-1] = replace(last, logits=logits)
            return result

    return RoundsCoarsely


@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.float32, torch.bfloat16]), ids=str)
def test_what_is_no_rounding_excuses_nothing(dtype):
    unit = 0.01 if dtype == torch.float32 else 1.5
    check = Served(small_decoder(dtype=dtype), 0, 0, rounding_to(unit)).check()
    assert check.found.num_wrong_tokens == 0
    assert (check.is_rounding, check.passed) == (False, False)


def test_nothing_said_proves_nothing(served):
    assert not served.check([]).passed
    assert not served.check([replace(served.transcripts[0], output=[], logits=[])]).passed


# ---------------------------------------------------------------- alone


@pytest.mark.parametrize("seed", slow_but([0], range(3)))
def test_alone_it_says_what_is_most_likely(decoder, seed):
    served = Served(decoder, seed)
    arrival = max(served.arrivals, key=lambda one: one.max_tokens)
    number = len(served.executor.executed)
    for _ in range(2):
        said = say_alone(served.executor, served.config, arrival.prompt, arrival.max_tokens)
        assert said.output == alone(decoder, arrival)
        assert len(said.logits) == arrival.max_tokens
    assert len(served.executor.executed) == number


@pytest.mark.parametrize("seed", slow_but([3], range(6)))
def test_without_its_first_block_it_says_something_else(decoder, seed):
    served = Served(decoder, seed)
    room = served.config.max_model_len - 60
    prompt = served.arrivals[0].prompt * 60
    right, wrong = (
        say_alone(served.executor, served.config, prompt[:60], min(room, 30), loses_block=loses).output
        for loses in (False, True)
    )
    assert right != wrong


# ---------------------------------------------------------------- ties


class PreparedReference:
    """A reference that says how far tokens are behind the most likely ones."""

    def __init__(self, behind):
        self._behind = torch.tensor(behind, dtype=torch.float64)

    def look_up(self, said):
        return torch.zeros_like(self._behind), self._behind

    def differences(self, said):
        return torch.zeros_like(self._behind)

    def largest_difference(self, said):
        return 0.0


@pytest.mark.parametrize(
    ("behind", "num_ties", "num_wrong", "allowed"),
    [
        ([0.0] * 10, 0, 0, True),
        ([0.0] * 9 + [1.9], 1, 0, True),
        ([0.0] * 8 + [1.9] * 2, 2, 0, False),
        ([0.0] * 1998 + [1.9] * 2, 2, 0, True),
        ([0.0] * 9 + [2.1], 0, 1, False),
        ([0.0] * 9 + [float("nan")], 0, 1, False),
    ],
)
def test_ties_are_rare(behind, num_ties, num_wrong, allowed):
    found = Findings(tolerance=1.0, ties_are_rare=True)
    found.add(Transcript("r", [1], [0] * len(behind), [0.0] * len(behind)), PreparedReference(behind))
    assert (found.num_ties, found.num_wrong_tokens, found.allowed) == (num_ties, num_wrong, allowed)
