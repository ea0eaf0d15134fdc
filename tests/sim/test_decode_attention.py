"""Decode attention that is slower than its context: beside prompts, and where one sequence is longer than others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.catalogue.gpus import load_gpu
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.sim.decode_attention import DecodeAttention
from kvtwin.sim.roofline import decode_attention
from kvtwin.sim.step_shape import StepShape
from tests.parts import examples

FLASH = DecodeAttention(1.6, 5.0, 38)
"""As for Llama-3.1-8B on an RTX PRO 6000."""


def decode(contexts, prompt=0):
    """A step of sequences that decode after ``contexts``, beside a prompt of so many tokens."""
    count = len(contexts) + (prompt > 0)
    pairs = prompt * (prompt + 1) // 2
    longest = max(contexts, default=0)
    return StepShape(count, len(contexts), prompt, sum(contexts) + prompt, pairs, count, longest)


def test_equal_sequences_that_decode_alone_take_no_longer_than_their_context():
    assert FLASH.extra_tokens(decode([1000] * 64)) == 0


def test_of_a_longer_one_that_is_not_divided_several_are_added():
    """64 sequences of 1,000 tokens in the mean, the longest of 4,000."""
    contexts = [4000, *[952] * 62, 976]
    assert sum(contexts) == 64_000
    assert FLASH.extra_tokens(decode(contexts)) == 5 * (4000 - 1000)


def test_where_contexts_are_divided_the_longest_adds_little():
    contexts = [4000, *[900] * 30]
    assert FLASH.extra_tokens(decode(contexts)) == pytest.approx(0.03 * 31 * (4000 - 1000))


def test_what_was_measured_on_an_rtx_pro_6000():
    """256 sequences, one of 16,384 tokens and the others of 4,096: 192 us a layer more than equally long ones.

    LLMServingSim's skew.csv of Llama-3.1-8B: 3,058 instead of 2,867 us, and 791 instead of 746 with a fourth of it.
    """
    gpu, shape = load_gpu("RTX-PRO-6000-Server"), load_model("Llama-3.1-8B")
    attention = decode_attention(shape, gpu, 1)
    token_ns = 2_866_528 / (256 * 4144)
    for long, others, added_us in ((16_384, 4096, 192), (4096, 1024, 46)):
        extra = attention.extra_tokens(decode([long, *[others] * 255]))
        assert token_ns * extra / 1000 == pytest.approx(added_us, rel=0.2)
    assert attention.undivided_from == 33  # padded to 40, times 8 heads, is more than 1.6 times 188
    assert decode_attention(shape, load_gpu("h200"), 1) is None
    assert decode_attention(shape, gpu, 2).longest_undivided == pytest.approx(2 * attention.longest_undivided)


def test_beside_a_prompt_context_counts_more_and_the_longest_as_several():
    assert FLASH.extra_tokens(decode([1000] * 32, prompt=64)) == pytest.approx(0.6 * 32_000)
    uneven = [3000, *[1000] * 31]
    mean = sum(uneven) / 32
    expected = 0.6 * sum(uneven) + 1.6 * 4 * (3000 - mean)
    assert FLASH.extra_tokens(decode(uneven, prompt=64)) == pytest.approx(expected)


def test_two_sequences_count_as_no_more_than_two():
    assert DecodeAttention(1.0, 5.0, 38).extra_tokens(decode([3000, 1000], prompt=64)) == 2 * (3000 - 2000)


def test_nothing_that_decodes_adds_nothing():
    assert FLASH.extra_tokens(StepShape(1, 0, 100, 100, 5050, 1)) == 0


@given(
    contexts=st.lists(st.integers(1, 100_000), min_size=1, max_size=40),
    which=st.integers(0, 39),
    by=st.integers(1, 1000),
    prompt=st.sampled_from([0, 1, 500]),
)
@examples(100)
def test_a_longer_context_never_takes_less(contexts, which, by, prompt):
    grown = list(contexts)
    grown[which % len(grown)] += by

    def tokens(contexts):
        shape = decode(contexts, prompt)
        return shape.context_tokens + FLASH.extra_tokens(shape)

    assert tokens(grown) >= tokens(contexts) * (1 - 1e-12)
