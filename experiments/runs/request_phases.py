"""From the events of a run's steps: what each request did when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvtwin.experiments.records.event_file import read_events
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.recording import NEVER

_COLUMNS = ("scheduled", "scheduled_tokens", "output_tokens", "admitted", "hit_tokens", "preempted", "finished")


class Phase(NamedTuple):
    """A stretch of a request's life."""

    request: str
    name: str
    """``queued``, ``prefill`` (one chunk of it), ``decode`` or ``preempted``."""
    start_ns: int
    end_ns: int
    figures: dict[str, int]
    """Tokens computed (``tokens``), delivered (``output_tokens``), found in the cache (``hit_tokens``)."""


@dataclass(slots=True)
class _Live:
    """A request that was admitted and has not ended."""

    waiting_since_ns: int
    waits_as: str = "queued"
    num_hit_tokens: int | None = None
    """What it found, until its first chunk has told so."""
    is_prefilling: bool = True
    decode_start_ns: int = 0
    decode_end_ns: int = 0
    num_decoded_tokens: int = 0
    end_ns: int = 0
    """When the latest step that it is in ends."""


def request_phases(run: Run) -> Iterator[Phase]:
    """All phases of all requests that were admitted, each when it is over. UserError: the run has no events.

    A chunk of a prefill is a step; the steps of a decode are one phase. The step in which a prompt ends delivers the
    first token, and still counts as prefill. Requests that were admitted in a warm-up are left out.
    """
    arrivals = _arrivals_ns(run)
    live: dict[str, _Live] = {}
    steps = zip(*(run.steps[name].tolist() for name in ("scheduled_ns", "start_ns", "end_ns")), strict=True)
    for batch in read_events(run, _COLUMNS):
        for scheduled, tokens, outputs, admitted, hits, preempted, finished in zip(*batch.values(), strict=True):
            scheduled_ns, start_ns, end_ns = next(steps)
            for request in finished:
                if request in live:
                    yield from _decode(request, live.pop(request))
            for request in preempted:
                if request not in live:
                    continue
                state = live[request]
                yield from _decode(request, state)
                state.waiting_since_ns, state.waits_as = max(scheduled_ns, state.end_ns), "preempted"
            for request, num_hit_tokens in zip(admitted, hits, strict=True):
                if request not in live:
                    known = arrivals.get(request)
                    live[request] = _Live(known.pop() if known else scheduled_ns)
                state = live[request]
                yield Phase(request, state.waits_as, state.waiting_since_ns, max(start_ns, state.waiting_since_ns), {})
                state.num_hit_tokens, state.is_prefilling = num_hit_tokens, True
            for request, num_tokens, num_outputs in zip(scheduled, tokens, outputs, strict=True):
                if request not in live:
                    continue
                state = live[request]
                state.end_ns = end_ns
                if state.is_prefilling:
                    figures = {"tokens": num_tokens, "output_tokens": num_outputs}
                    if state.num_hit_tokens is not None:
                        figures["hit_tokens"], state.num_hit_tokens = state.num_hit_tokens, None
                    yield Phase(request, "prefill", start_ns, end_ns, figures)
                    state.is_prefilling = num_outputs == 0
                elif num_outputs:
                    if not state.num_decoded_tokens:
                        state.decode_start_ns = start_ns
                    state.num_decoded_tokens += num_outputs
                    state.decode_end_ns = end_ns
    for request, state in live.items():
        yield from _decode(request, state)


def _arrivals_ns(run: Run) -> dict[str, list[int]]:
    """When the admitted requests of each id arrived, the last first: an id may come again once it is free."""
    requests = run.requests
    arrivals: dict[str, list[int]] = {}
    rows = zip(requests["request_id"], requests["arrival_ns"].tolist(), requests["first_scheduled_ns"], strict=True)
    for request, arrival_ns, first_scheduled_ns in rows:
        if first_scheduled_ns != NEVER:
            arrivals.setdefault(request, []).insert(0, arrival_ns)
    return arrivals


def _decode(request: str, state: _Live) -> Iterator[Phase]:
    """The decode that is over, if there was one."""
    if state.num_decoded_tokens:
        figures = {"output_tokens": state.num_decoded_tokens}
        yield Phase(request, "decode", state.decode_start_ns, state.decode_end_ns, figures)
        state.num_decoded_tokens = 0
