"""Options that take several numbers in one word, with commas."""

from __future__ import annotations

import argparse

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number


def whole_numbers(flag: str, text: str | None) -> list[int]:
    """Block counts such as ``10000,40000``. UserError: anything else."""
    try:
        numbers = [int(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        numbers = [0]
    if any(number < 2 for number in numbers):
        raise UserError(f"{flag}: expected whole numbers from 2, such as 10000,40000, got {text!r}")
    return numbers


def shares(flag: str, text: str | None) -> list[float]:
    """Shares such as ``0.5,0.92``, each above 0 and at most 1. UserError: anything else."""
    number = Number(0, 1, above=True)
    try:
        return [number(word) for word in (text or "").split(",") if word.strip()]
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{flag}: {error}") from None
