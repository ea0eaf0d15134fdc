"""Whether a replay keeps what happened in every step, and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.lenient import LenientFile
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.records import event_file, kv_event_file
from kvtwin.experiments.records.event_file import EventFile
from kvtwin.experiments.records.folder import folder_beside
from kvtwin.experiments.records.kv_event_file import KVEventWriter
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.step_events import StepEventRecorder


@dataclass
class EventFolder:
    """What is written during a run. A disk that is full does not end the run: the file is left out."""

    path: Path
    files: list[LenientFile] = field(default_factory=list)

    def open(self, name: str) -> LenientFile:
        """A new file."""
        self.files.append(LenientFile(self.path / name))
        return self.files[-1]

    def folder(self, name: str) -> EventFolder:
        """A new folder in it, whose files are among its own."""
        (self.path / name).mkdir()
        return EventFolder(self.path / name, self.files)

    def drop_failed(self) -> list[str]:
        """Delete the files that are not whole; their names, each with the reason."""
        failed = [file for file in self.files if file.failure]
        for file in failed:
            file.path.unlink(missing_ok=True)
        return [f"{file.path.relative_to(self.path)} ({file.failure})" for file in failed]


@contextmanager
def event_folder(options: ReplayOptions) -> Iterator[EventFolder | None]:
    """A temporary folder beside ``--out`` for what is written during the run; None if nothing is.

    UserError: there is no ``--out``.
    """
    if not (options.events or options.kv_events):
        yield None
        return
    if not options.out:
        raise UserError(f"{'--events' if options.events else '--kv-events'}: needs --out DIR")
    with folder_beside(options.out, "-events") as folder:
        yield EventFolder(folder)


@contextmanager
def recorded_events(options: ReplayOptions, simulation: ServerSimulation, folder: EventFolder | None) -> Iterator[None]:
    """While this context lasts, what ``simulation`` does goes to files in ``folder``. UserError: nothing is cached."""
    with ExitStack() as stack:
        if options.kv_events:
            log = simulation.scheduler.kv_cache.events
            if log is None or not simulation.scheduler.config.enable_prefix_caching:
                raise UserError("--kv-events: needs prefix caching")
            assert folder
            file = stack.enter_context(folder.open(kv_event_file.NAME))
            simulation.observers.append(KVEventWriter(log, file))
        if options.events:
            assert folder
            events = stack.enter_context(EventFile(stack.enter_context(folder.open(event_file.NAME))))
            recorder = StepEventRecorder(simulation.scheduler, events.keep)
            simulation.observers.append(recorder)
            stack.callback(recorder.close)
        yield
