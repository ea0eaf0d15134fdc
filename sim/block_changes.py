"""What can become of a block, as the events of a run have it."""

from __future__ import annotations

from enum import IntEnum


class BlockChange(IntEnum):
    """What can become of a block."""

    TAKEN = 0
    """Handed out from the free queue: what it cached is gone."""
    HIT = 1
    """Held by one more request, which found it in the cache, or by a fork."""
    FREED = 2
    """Held by one request less."""
    CACHED = 3
    """Full, and hit-able from now on."""
