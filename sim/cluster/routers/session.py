"""All turns of a conversation to one replica."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from hashlib import blake2b

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router
from kvtwin.sim.cluster.view import View


@dataclass
class Session(Router):
    """A consistent hash of the session decides; a request without one is a session of its own.

    Each replica has ``virtual_nodes`` places on a ring of hashes; a session belongs to the next place behind its own
    hash. So a replica that is added takes sessions over from all others, and moves no other ones (D. Karger et al.,
    Consistent hashing and random trees, 1997).
    """

    name = "session"
    knows = Knows.THE_REQUEST
    virtual_nodes: int = 160

    def begin(self, view: View) -> None:
        places = [
            (_hash(f"replica {replica}/{node}"), replica)
            for replica in range(view.num_replicas)
            for node in range(self.virtual_nodes)
        ]
        self._ring = sorted(places)
        self._hashes = [place for place, _ in self._ring]

    def choose(self, request: RoutedRequest, view: View) -> int:
        record = request.record
        key = f"session {record.session}" if record.session is not None else f"request {record.request_id}"
        return self._ring[bisect(self._hashes, _hash(key)) % len(self._ring)][1]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
