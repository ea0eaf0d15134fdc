"""Block keys that a router remembers, the least recently used of which it forgets."""

from __future__ import annotations

from collections.abc import Iterable


class BlockLru:
    """At most ``most_blocks`` keys, ordered by when they were last used, and when that was."""

    def __init__(self, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._used_ns: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._used_ns

    def __len__(self) -> int:
        return len(self._used_ns)

    def use(self, keys: Iterable[int], now_ns: int) -> None:
        """All of ``keys``, in order, are the most recently used ones."""
        used_ns, most_blocks = self._used_ns, self._most_blocks
        for key in keys:
            used_ns.pop(key, None)
            used_ns[key] = now_ns
            if len(used_ns) > most_blocks:
                del used_ns[next(iter(used_ns))]

    def forget_before(self, time_ns: int) -> None:
        """Forget what was last used before ``time_ns``."""
        used_ns = self._used_ns
        while used_ns and used_ns[key := next(iter(used_ns))] < time_ns:
            del used_ns[key]
