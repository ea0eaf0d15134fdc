"""Tokens of texts: by a tokenizer of the user's, or about as many as one would make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from kvtwin.workloads.errors import WorkloadError

BYTES_PER_TOKEN = 4
_MARKERS = {"start": 0, "end": 1, "line": 2, "system": 3, "user": 4, "assistant": 5, "tool": 6}
"""Tokens that frame a message, as chat templates do; their ids mean nothing else than themselves."""


class TextTokens(Protocol):
    """From a text to token ids: texts that begin alike get ids that begin alike."""

    def __call__(self, text: str) -> list[int]: ...


def approximate_tokens(text: str) -> list[int]:
    """One token per four bytes of UTF-8; its id is what the bytes are, so that equal texts have equal ids.

    >>> len(approximate_tokens("What is the capital of France?"))
    8
    """
    content = text.encode("utf-8", "surrogatepass")
    return [
        int.from_bytes(content[start : start + BYTES_PER_TOKEN], "little") + len(_MARKERS)
        for start in range(0, len(content), BYTES_PER_TOKEN)
    ]


@lru_cache(maxsize=2)
def tokens_of(tokenizer: str | None) -> TextTokens:
    """The tokenizer in a folder or a ``tokenizer.json``; None: the approximation. WorkloadError: there is none."""
    if tokenizer is None:
        return approximate_tokens
    path = Path(tokenizer)
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise WorkloadError("--tokenizer", "needs the extra: pip install 'kvtwin[text]'") from None
    try:
        loaded: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise WorkloadError(str(path), f"not a tokenizer: {error}") from None
    return lambda text: list(loaded.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True)
class Message:
    """What somebody said."""

    role: str
    """system, user, assistant or tool; others count as user."""
    text: str


class ChatTokens:
    """Prompts and answers of chats. The prompt of a turn begins with the turn before and its answer.

    A message is three tokens, its text, and two more, as common chat templates have it; a prompt ends with the three
    that open the answer, and an answer with one that closes it.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self.of_text = tokens_of(tokenizer)

    def prompt(self, messages: Iterable[Message]) -> list[int]:
        """All messages, and what opens the answer."""
        ids: list[int] = []
        for message in messages:
            ids += [*_opening(message.role), *self.of_text(message.text), _MARKERS["end"], _MARKERS["line"]]
        return ids + _opening("assistant")

    def answer(self, text: str) -> list[int]:
        """What the model says."""
        return [*self.of_text(text), _MARKERS["end"]]


def _opening(role: str) -> list[int]:
    return [_MARKERS["start"], _MARKERS.get(role, _MARKERS["user"]), _MARKERS["line"]]
