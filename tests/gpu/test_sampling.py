"""Sampling: greedy is the highest logit; else the softmax's distribution, by noise that no batch changes."""

from math import sqrt

import pytest
import torch

from kvtwin.gpu.sampling import gumbel_noise, sample

VOCAB = 12


def drawn(logits, temperature, count, seed=1):
    """Draws from the same logits at positions 0, 1, ..."""
    rows = logits.expand(count, -1)
    return sample(rows, temperature, torch.full((count,), seed), torch.arange(count))


def chi_square(tokens, probabilities):
    counts = torch.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    return ((counts - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_follow_the_softmax(temperature, along):
    """Over positions of one seed, and over seeds at one position. 11 degrees of freedom: mean 11, deviation 4.7."""
    logits = torch.linspace(-2, 1, VOCAB)
    count = 40_000
    if along == "positions":
        tokens = drawn(logits, temperature, count)
    else:
        rows = logits.expand(count, -1)
        tokens = sample(rows, temperature, torch.arange(count), torch.full((count,), 17))
    assert chi_square(tokens, (logits / temperature).softmax(-1)) < 11 + 4 * 4.7


def test_draws_of_neighbours_are_independent():
    """Pairs of draws at neighbouring positions, seeds, and seeds that differ in their upper half only."""
    probabilities = torch.full((4,), 0.25)
    logits, count = torch.zeros(4), 40_000
    tokens = drawn(logits, 1.0, count)
    pairs = {
        "positions": tokens[0::2] * 4 + tokens[1::2],
        "seeds": tokens * 4 + drawn(logits, 1.0, count, seed=2),
        "upper half of the seed": tokens * 4 + drawn(logits, 1.0, count, seed=1 + 2**32),
    }
    for together in pairs.values():
        assert chi_square(together, probabilities.repeat(4) / 4) < 15 + 4 * sqrt(30)


def test_a_large_vocabulary_is_drawn_evenly():
    """One likely token among 30,000 is drawn as often as it should be, and hardly any other twice."""
    logits, count = torch.zeros(30_000), 600
    logits[77] = 7.0  # e^7 against 29,999: probability 0.035
    tokens = torch.cat([drawn(logits, 1.0, 100, seed) for seed in range(count // 100)])
    expected = count * torch.softmax(logits, -1)[77].item()
    others = tokens[tokens != 77]
    assert abs(count - len(others) - expected) < 4 * sqrt(expected)
    assert others.unique().numel() > 0.97 * len(others)


def test_noise_is_gumbel_distributed():
    noise = gumbel_noise(torch.arange(200), torch.arange(200), 1000)
    assert noise.isfinite().all()
    assert abs(noise.mean().item() - 0.5772) < 0.02
    assert abs(noise.std().item() - 1.2825) < 0.02


def test_temperature_0_is_greedy_and_the_lowest_id_wins():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 3.0, 3.0, 1.0]])
    tokens = sample(logits, 0.0, torch.tensor([4, 5]), torch.tensor([0, 9]))
    assert tokens.tolist() == [1, 0]


def test_a_draw_depends_on_nothing_but_its_row():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 500, generator=generator)
    seeds = torch.randint(-(2**63), 2**63 - 1, (64,), generator=generator)
    positions = torch.randint(0, 10_000, (64,), generator=generator)
    together = sample(logits, 0.7, seeds, positions)
    order = torch.randperm(64, generator=generator)
    assert torch.equal(sample(logits[order], 0.7, seeds[order], positions[order]), together[order])
    for row in range(64):
        only = slice(row, row + 1)
        assert sample(logits[only], 0.7, seeds[only], positions[only]) == together[row]


def test_a_seed_is_drawn_the_same_way_for_ever():
    """These are written down: another version must not draw other tokens."""
    assert drawn(torch.zeros(1000), 1.0, 6, seed=42).tolist() == [997, 443, 740, 83, 542, 412]
