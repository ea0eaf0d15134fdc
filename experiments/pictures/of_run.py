"""The pictures of one run, by name."""

from __future__ import annotations

from matplotlib.figure import Figure

from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.pictures import replicas as replica_pictures
from kvtwin.experiments.pictures import run as run_pictures
from kvtwin.experiments.pictures import shares
from kvtwin.experiments.pictures.figure import Heading
from kvtwin.experiments.records.options import options_of_run
from kvtwin.experiments.records.reader import Run

PICTURES = {
    "timeline": "Cache, requests and preemptions over time",
    "latencies": "How long requests took",
    "misses": "Hits and sources of misses",
}
"""What each shows."""


def picture_of_run(run: Run, name: str) -> Figure:
    """One of `PICTURES`."""
    if name == "timeline":
        drawn = replica_pictures.timelines(run) if run.replicas else run_pictures.timeline(run)
    elif name == "latencies":
        drawn = run_pictures.latencies(run)
    else:
        drawn = shares.misses([run.summary], [run.title])
    what = "Cache and requests of each replica over time" if name == "timeline" and run.replicas else PICTURES[name]
    return heading_of(run).on(drawn, what)


def pictures_of_run(run: Run) -> dict[str, Figure]:
    """All of them."""
    return {name: picture_of_run(run, name) for name in PICTURES}


def heading_of(run: Run) -> Heading:
    """What stands on them: the run's title, and the command that repeats it."""
    options = options_of_run(run.configuration)
    return Heading(run.title, command_line(run.configuration["command"], options))
