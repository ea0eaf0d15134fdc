"""What every router is: something that chooses a replica for a request, from what it can see."""

from __future__ import annotations

from typing import ClassVar

from kvtwin.sim.cluster.view import View
from kvtwin.workloads.prefixes.chains import Run, prefix_chain
from kvtwin.workloads.request_record import RequestRecord


class RoutedRequest:
    """A request as a router sees it: the record, and its prompt cut into the router's own blocks."""

    __slots__ = ("_prompts", "record")

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self._prompts: dict[int, list[Run]] = {}

    def prompt(self, block_tokens: int) -> list[Run]:
        """The prompt's leading full blocks of ``block_tokens`` tokens whose content is known, as named runs."""
        runs = self._prompts.get(block_tokens)
        if runs is None:
            runs, left = [], self.record.prompt_tokens // block_tokens
            for name, count in prefix_chain(self.record, block_tokens).runs:
                if left <= 0:
                    break
                runs.append((name, min(count, left)))
                left -= count
            self._prompts[block_tokens] = runs
        return runs


class Router:
    """Chooses a replica for each request. Subclasses override :meth:`choose`, and :meth:`begin` if they need to see.

    A router is asked once per request, in the order in which they are sent. It knows what ``View`` shows, and whatever
    it keeps itself; it never looks into an engine.
    """

    name: ClassVar[str]
    serves_api: ClassVar[bool] = False
    """Whether it stands behind vLLM's front end, which refuses bad requests before anybody routes them."""

    def begin(self, view: View) -> None:
        """The run is about to begin: ask ``view`` for what :meth:`choose` will look at."""

    def choose(self, request: RoutedRequest, view: View) -> int:
        """The number of the replica that shall serve ``request``, from 0 on."""
        raise NotImplementedError

    def ended(self, request: RoutedRequest, replica: int) -> None:
        """The replica is done with ``request``, whatever came of it."""


def least(values: list[int] | list[float]) -> int:
    """The position of the least of ``values``, the first of several."""
    return min(range(len(values)), key=values.__getitem__)
