"""Names that people write in many ways, and what to say of one that is not known."""

from __future__ import annotations

import difflib


def plain_name(name: str) -> str:
    """Lower case, letters and digits only, without the maker."""
    return "".join(c for c in name.lower().removeprefix("nvidia") if c.isalnum())


def unknown_name(kind: str, name: str, known: list[str], otherwise: str) -> str:
    """That there is no such ``kind``, the nearest of the ``known`` names, and what may be given ``otherwise``."""
    by_plain = {plain_name(entry.split("/")[-1]): entry for entry in known}
    near = difflib.get_close_matches(plain_name(name.split("/")[-1]), by_plain, n=3, cutoff=0.4)
    hint = f"nearest: {', '.join(by_plain[n] for n in near)}" if near else f"known: {', '.join(known)}"
    return f"no {kind} {name!r} in the catalogue; {hint}; or give {otherwise}"
