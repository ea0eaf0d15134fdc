"""The two parts of the tests: the quick one, which every change is made with, and the slow rest.

A test marked ``slow`` is in the rest alone. A Hypothesis test is in both, with few examples in the quick part (profile
``quick``), a quarter of them in the rest (profile ``thorough``), and all of them with ``--hypothesis-profile full``.
"""

from collections.abc import Collection, Iterable

import pytest
from hypothesis import settings

ALL_EXAMPLES = 100
"""What Hypothesis makes for a test that asks for no number of its own, in the profile ``full``."""

QUICK_SHARE = 0.08
"""Of the examples, those that the quick part makes."""


def register_profiles() -> None:
    """All without examples that depend on chance, and without failures of a busy machine."""
    common = settings(deadline=None, derandomize=True, database=None)
    settings.register_profile("full", common, max_examples=ALL_EXAMPLES)
    settings.register_profile("thorough", common, max_examples=ALL_EXAMPLES // 4)
    settings.register_profile("quick", common, max_examples=round(ALL_EXAMPLES * QUICK_SHARE))


def examples(number: int, **others: object) -> settings:
    """``settings(max_examples=number)``; in the quick part a share of the number."""
    return settings(max_examples=number * settings.default.max_examples // ALL_EXAMPLES, **others)


def slow_but(quick: Collection, cases: Iterable) -> list:
    """``cases`` for ``parametrize``, all of them slow but the ``quick`` ones, which are among them."""
    cases = list(cases)
    assert all(case in cases for case in quick), "a quick case that is none of the cases is never run"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
