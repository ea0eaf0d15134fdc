"""Names that people write in many ways, and what to say of one that is not known."""

from __future__ import annotations

import difflib
import re
from itertools import takewhile


def plain_name(name: str) -> str:
    """Lower case, letters and digits only, without the maker."""
    return "".join(c for c in name.lower().removeprefix("nvidia").removeprefix("amd") if c.isalnum())


def unknown_name(kind: str, name: str, known: list[str], otherwise: str) -> str:
    """That there is no such ``kind``, the nearest of the ``known`` names, and what may be given ``otherwise``."""
    near = nearest(name, known)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
    return f"no {kind} {name!r} in the catalogue; {hint}; or give {otherwise}"


def nearest(name: str, known: list[str], most: int = 3) -> list[str]:
    """The names most like ``name``, those of its family first: with the same letters at the beginning."""
    wanted = plain_name(name.split("/")[-1])
    by_plain = {plain_name(entry.split("/")[-1]): entry for entry in known}
    family = _family(wanted)
    same = [plain for plain in by_plain if family and _family(plain) == family]
    found = sorted(same, key=lambda plain: _likeness(wanted, plain), reverse=True)[:most]
    others = [plain for plain in by_plain if plain not in same]
    found += difflib.get_close_matches(wanted, others, n=most - len(found), cutoff=0.4) if len(found) < most else []
    return [by_plain[plain] for plain in found]


def _likeness(wanted: str, plain: str) -> tuple[int, float]:
    """Letters and digits in common at the beginning, then the share in common anywhere."""
    in_common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, plain, strict=False)))
    return in_common, difflib.SequenceMatcher(None, wanted, plain).ratio()


def _family(plain: str) -> str:
    """The letters before the first digit."""
    return re.split(r"\d", plain, maxsplit=1)[0]
