"""Whether a replay keeps what happened in every step, and where."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.events import event_file, kv_event_file
from kvtwin.experiments.events.event_file import EventFile
from kvtwin.experiments.events.kv_event_file import KVEventWriter
from kvtwin.experiments.runs.folder import folder_beside
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.step_events import StepEventRecorder


def add_event_arguments(parser: argparse.ArgumentParser) -> None:
    """What is kept of single steps."""
    group = parser.add_argument_group("events (for kvtwin report and kvtwin export)")
    add = group.add_argument
    add("--events", action="store_true", help="keep what happened in every step, and to which blocks, in --out DIR")
    add(
        "--kv-events",
        action="store_true",
        help="keep the KV events that vLLM would publish in --out DIR, as JSON lines",
    )


@contextmanager
def event_folder(args: argparse.Namespace) -> Iterator[Path | None]:
    """A temporary folder beside ``--out`` for what is written during the run; None if nothing is.

    UserError: there is no ``--out``.
    """
    if not (args.events or args.kv_events):
        yield None
        return
    if not args.out:
        raise UserError(f"{'--events' if args.events else '--kv-events'}: needs --out DIR")
    with folder_beside(args.out, "-events") as folder:
        yield folder


@contextmanager
def recorded_events(args: argparse.Namespace, simulation: ServerSimulation, folder: Path | None) -> Iterator[None]:
    """While this context lasts, what ``simulation`` does goes to files in ``folder``. UserError: nothing is cached."""
    with ExitStack() as stack:
        if args.kv_events:
            log = simulation.scheduler.kv_cache.events
            if log is None or not simulation.scheduler.config.enable_prefix_caching:
                raise UserError("--kv-events: this server caches no prefixes, so there are none")
            assert folder
            file = stack.enter_context(open(folder / kv_event_file.NAME, "w", encoding="utf-8"))
            simulation.observers.append(KVEventWriter(log, file))
        if args.events:
            assert folder
            events = stack.enter_context(EventFile(folder / event_file.NAME))
            recorder = StepEventRecorder(simulation.scheduler, events.keep)
            simulation.observers.append(recorder)
            stack.callback(recorder.close)
        yield
