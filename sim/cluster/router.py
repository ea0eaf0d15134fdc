"""What every router is: something that chooses a replica for a request, from what it can see."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from random import Random
from typing import ClassVar

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.view import View


class Knows(IntEnum):
    """What a choice depends on."""

    THE_REQUEST = 0
    EARLIER_REQUESTS = 1
    """That, and the requests before it, in the order in which they were sent."""
    SERVERS = 2
    """That, the time, and what became of requests at the servers."""


class Router:
    """Chooses a replica for each request. Subclasses override :meth:`choose`, and :meth:`begin` if they need to see.

    A router is asked once per request, in the order in which they are sent. It knows what ``View`` shows, and whatever
    it keeps itself; it never looks into an engine. A subclass is a dataclass whose fields are its settings, under the
    names and with the defaults of the original.
    """

    name: ClassVar[str]
    knows: ClassVar[Knows] = Knows.SERVERS
    serves_api: ClassVar[bool] = False
    """Whether it stands behind vLLM's front end, which refuses bad requests before anybody routes them."""
    follows_caches: ClassVar[bool] = False
    """Whether it looks at KV events."""

    def begin(self, view: View) -> None:
        """The run is about to begin: ask ``view`` for what :meth:`choose` will look at. ValueError: a bad setting."""

    def choose(self, request: RoutedRequest, view: View) -> int:
        """The number of the replica that shall serve ``request``, from 0 on."""
        raise NotImplementedError

    def ended(self, request: RoutedRequest, replica: int) -> None:
        """The replica is done with ``request``, whatever came of it."""


def least(values: Sequence[float]) -> int:
    """The position of the least of ``values``, the first of several."""
    return min(range(len(values)), key=values.__getitem__)


def any_least(values: Sequence[float], draw: Random) -> int:
    """The position of the least of ``values``, drawn at random from several."""
    lowest = min(values)
    positions = [position for position, value in enumerate(values) if value == lowest]
    return positions[0] if len(positions) == 1 else draw.choice(positions)


def text_block_tokens(characters: int, characters_per_token: int) -> int:
    """Tokens of a block of text. ValueError: it is not a whole number of them."""
    if characters % characters_per_token:
        raise ValueError(f"a block of {characters} characters is no whole number of tokens of {characters_per_token}")
    return characters // characters_per_token
