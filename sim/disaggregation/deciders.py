"""Who decides whether a prompt is computed by a prefill replica, or by the decode replica that will serve it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Decider(Protocol):
    """Asked once per request, when its decode replica is chosen."""

    def prefills_remotely(self, prompt_tokens: int, cached_tokens: int) -> bool:
        """Whether a prefill replica shall compute it; ``cached_tokens`` of it are cached at the decode replica."""


class Always(Decider):
    """Every prompt goes to a prefill replica (llm-d's ``always-disagg-pd-decider``, vLLM's example proxies)."""

    def prefills_remotely(self, prompt_tokens: int, cached_tokens: int) -> bool:
        return True


@dataclass(frozen=True)
class Uncached(Decider):
    """Prompts of which the decode replica lacks at least ``num_tokens`` tokens; 0 is never.

    Source: llm-d-inference-scheduler, ``prefix-based-pd-decider`` and its ``nonCachedTokens``.
    """

    num_tokens: int

    def prefills_remotely(self, prompt_tokens: int, cached_tokens: int) -> bool:
        return 0 < self.num_tokens <= prompt_tokens - cached_tokens


@dataclass(frozen=True)
class TwoParts(Decider):
    """All prompts but those of which little is to be computed: few tokens, and a small part of the prompt.

    Source: ai-dynamo/dynamo 1.6.1, conditional bypass of the prefill router.
    """

    most_tokens: int = 2048
    most_share: float = 0.7

    def prefills_remotely(self, prompt_tokens: int, cached_tokens: int) -> bool:
        to_compute = prompt_tokens - cached_tokens
        return not (to_compute < self.most_tokens and to_compute < self.most_share * prompt_tokens)


def make_decider(text: str) -> Decider:
    """``always``, ``uncached:N`` or ``dynamo``. ValueError: it is none of them."""
    name, _, number = text.partition(":")
    if text == "always":
        return Always()
    if text == "dynamo":
        return TwoParts()
    if name == "uncached" and number.isascii() and number.isdigit():
        return Uncached(int(number))
    raise ValueError(f"expected always, uncached:TOKENS or dynamo, got {text}")
