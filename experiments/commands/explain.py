"""``kvtwin explain``: replay a trace, and tell everything that happened to one request, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches

from kvtwin.engine.scheduler import Scheduler
from kvtwin.experiments.commands import replay
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.narration.narrator import Narrator
from kvtwin.experiments.narration.text import narration_lines
from kvtwin.experiments.options.load import shape_load
from kvtwin.experiments.options.trace import open_trace
from kvtwin.sim.requests import RequestFactory, sample_ids
from kvtwin.workloads.request_record import RequestRecord

EPILOGUE = """\
examples:
  kvtwin explain demo --request c66t1 --gpu rtx-4090 --max-model-len 8192 --num-gpu-blocks-override 1800 \
--max-num-seqs 64
  kvtwin explain trace.jsonl --request 1a2b --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options: those of ``replay``, and whom to follow."""
    replay.add_arguments(parser)
    parser.add_argument_group("whom to follow").add_argument(
        "--request", required=True, metavar="ID", help="id of the request in the trace (else its row, from 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Explain a request. UserError: no request has the id. Exit code 1 when it did not come to its end."""
    record, request_id = _find(args)
    narrators: list[Narrator] = []
    refusals: list[str | None] = []

    def observe(scheduler: Scheduler, now_ns: Callable[[], int]) -> Narrator:
        narrators.append(Narrator(request_id, scheduler, now_ns))
        factory = RequestFactory(scheduler.keys, scheduler.config.max_model_len, ignore_eos=args.ignore_eos)
        refusals.append(factory.refusal(record))
        return narrators[0]

    replayed = replay.replay(args, observe=observe)
    events = narrators[0].events
    never = f"never reached the scheduler: {refusals[0] or 'what it waits for never came'}"
    if args.json:
        print(json.dumps({"request": request_id, "events": [asdict(event) for event in events]}, indent=2))
    else:
        print("\n".join(replayed.heading))
        print(f"\nrequest {request_id} ({record.source})")
        print("\n".join(narration_lines(events)) if events else never)
    return 0 if events and events[-1].kind == "end" else 1


def _find(args: argparse.Namespace) -> tuple[RequestRecord, str]:
    """The record that was asked for, and the engine's id of its request: with several samples, the first, or one."""
    ids = []
    for record in shape_load(args, open_trace(args)):
        samples = sample_ids(record)
        if args.request in samples:
            return record, args.request
        if args.request == record.request_id:
            return record, samples[0]
        ids.append(record.request_id)
    near = get_close_matches(args.request, ids, n=3, cutoff=0.0)
    raise UserError(f"--request: {args.trace} has no request {args.request!r}; nearest: {', '.join(near)}")
