"""Which request to explain, where none is named: the slowest, the first that was preempted, the one that cost most."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvtwin.engine.observer import Observer
from kvtwin.engine.request import Request
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.explain import CHOICES, ExplainOptions
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.experiments.runs.replay import replay


def chosen_request(options: ExplainOptions) -> str:
    """The id of the request that the options name or choose; to choose, the trace is replayed once before.

    UserError: they do neither or both, or nothing was preempted.
    """
    asked = [name for name in CHOICES if getattr(options, name)]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in CHOICES)
    if (options.request is not None) + len(asked) != 1:
        raise UserError(f"--request: expected it, or one of {flags}")
    if options.request is not None:
        return options.request
    watched = _Preemptions()
    columns = replay(options, observe=lambda *_: watched).recorder.requests
    if not columns.request_id:
        raise UserError(f"--{asked[0].replace('_', '-')}: no request was served")
    if asked == ["slowest"]:
        took_ns = as_array(columns.finish_ns) - as_array(columns.arrival_ns)
        return columns.request_id[int(np.argmax(took_ns))]
    if watched.first is None:
        raise UserError(f"--{asked[0].replace('_', '-')}: nothing was preempted")
    if asked == ["first_preempted"]:
        return watched.first
    found_again = dict(zip(columns.request_id, columns.resumed_hit_tokens, strict=True))
    return max(watched.lost_tokens, key=lambda name: watched.lost_tokens[name] - found_again.get(name, 0))


class _Preemptions(Observer):
    """Remembers who was preempted first, and how many computed tokens each request lost."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.lost_tokens = Counter[str]()

    def preempted(self, request: Request, needed_by: Request | None) -> None:
        """See :class:`~kvtwin.engine.observer.Observer`."""
        self.first = self.first or request.request_id
        self.lost_tokens[request.request_id] += request.num_computed_tokens
