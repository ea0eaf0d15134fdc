"""The one error that ends a command with a message instead of a traceback, and what it suggests."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """An error that the user can fix: one clear line, exit code 2."""


def nearest(word: str, known: Iterable[str], cutoff: float, most: int = 1) -> str:
    """``; nearest: ...`` for the end of a message: up to ``most`` of the ``known`` words, empty where none is alike."""
    near = get_close_matches(word, list(known), n=most, cutoff=cutoff)
    return f"; nearest: {', '.join(near)}" if near else ""
