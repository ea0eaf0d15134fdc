"""Numbers of things, as people say them."""

from __future__ import annotations


def number_of(number: int, what: str) -> str:
    """``number`` of ``what``, which is the word for one.

    >>> number_of(1, "bad line"), number_of(12_000, "request")
    ('1 bad line', '12,000 requests')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
