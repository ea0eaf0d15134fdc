"""The replay to explain, and the request that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches

from kvtwin.engine.scheduler import Scheduler
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.narration.choice import chosen_request
from kvtwin.experiments.narration.narrator import Narrator
from kvtwin.experiments.narration.text import narration_lines
from kvtwin.experiments.options.explain import ExplainOptions
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.setup.load import shape_load
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.sim.requests import RequestFactory, sample_ids
from kvtwin.workloads.request_record import RequestRecord

_MOST_IDS = 3
"""That a message names."""


def explain(options: ExplainOptions) -> int:
    """Explain a request. UserError: no request has the id. Exit code 1 if it did not finish."""
    record, request_id = _find(options)
    narrators: list[Narrator] = []
    refusals: list[str | None] = []

    def observe(scheduler: Scheduler, now_ns: Callable[[], int]) -> Narrator:
        narrators.append(Narrator(request_id, scheduler, now_ns))
        factory = RequestFactory(
            scheduler.keys,
            scheduler.config.max_model_len,
            ignore_eos=options.ignore_eos,
            encoder_cache_size=scheduler.config.encoder_cache_size,
        )
        refusals.append(factory.refusal(record))
        return narrators[0]

    replayed = replay(options, observe=observe)
    events = narrators[0].events
    never = f"never reached the scheduler: {refusals[0] or 'the requests that it waits for never finished'}"
    if options.json:
        print(json.dumps({"request": request_id, "events": [asdict(event) for event in events]}, indent=2))
    else:
        print("\n".join(replayed.heading))
        print(f"\nrequest {request_id} ({record.source})")
        print("\n".join(narration_lines(events)) if events else never)
    return 0 if events and events[-1].kind == "end" else 1


def _find(options: ExplainOptions) -> tuple[RequestRecord, str]:
    """The record that was asked for, and the engine's id of its request: with several samples, the first, or one."""
    ids = []
    workload = open_trace(options.trace, options)
    warn_of(workload)
    asked = chosen_request(options)
    for record in shape_load(options, workload):
        samples = sample_ids(record)
        if asked in samples:
            return record, asked
        if asked == record.request_id:
            return record, samples[0]
        ids.append(record.request_id)
    near = get_close_matches(asked, ids, n=_MOST_IDS)
    such = f"; similar: {', '.join(near)}" if near else f"; its first are {', '.join(ids[:_MOST_IDS])}"
    raise UserError(f"--request: {options.trace} has no request {asked!r}{such}")
