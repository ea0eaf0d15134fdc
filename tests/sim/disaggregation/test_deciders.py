"""Deciders, by their formulas."""

import pytest

from kvtwin.sim.disaggregation.deciders import make_decider


@pytest.mark.parametrize(
    ("text", "prompt", "cached", "remote"),
    [
        ("always", 1, 1, True),
        ("uncached:0", 10_000, 0, False),  # llm-d's default: never
        ("uncached:16", 100, 84, True),
        ("uncached:16", 100, 85, False),
        ("dynamo", 1000, 0, True),  # few tokens, but all of the prompt
        ("dynamo", 1000, 299, True),
        ("dynamo", 1000, 301, False),
        ("dynamo", 10_000, 7_952, True),  # 2,048 left
        ("dynamo", 10_000, 7_953, False),
    ],
)
def test_where_a_prompt_is_computed(text, prompt, cached, remote):
    assert make_decider(text).prefills_remotely(prompt, cached) is remote


@pytest.mark.parametrize(
    "text", ["", "never", "uncached", "uncached:", "uncached:-1", "uncached:x", "always:1", "uncached:²"]
)
def test_others_are_refused(text):
    with pytest.raises(ValueError, match="expected always, uncached:TOKENS or dynamo"):
        make_decider(text)
