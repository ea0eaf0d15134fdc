"""Whom SGLang takes out of the decode batch when memory runs short."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.request import Request


def retraction_order(decoding: Sequence[Request]) -> list[Request]:
    """``decoding`` by who is to stay: the last has said least, and of those who said as little asked most."""
    return sorted(decoding, key=lambda one: (one.num_output_tokens, -one.num_prompt_tokens), reverse=True)
