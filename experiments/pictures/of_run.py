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

OF_REPLICAS = {
    "timeline": "Cache and requests of each replica over time",
    "prefixes": "How many requests with a prefix each replica was sent",
}
"""The same of those that several replicas have instead, or besides."""


def picture_of_run(run: Run, name: str) -> Figure:
    """One of `picture_titles`."""
    if name == "timeline":
        drawn = replica_pictures.timelines(run) if run.replicas else run_pictures.timeline(run)
    elif name == "prefixes":
        drawn = replica_pictures.routed_prefixes(run)
    elif name == "latencies":
        drawn = run_pictures.latencies(run)
    else:
        drawn = shares.misses([run.summary], [run.title])
    return heading_of(run).on(drawn, picture_titles(run)[name])


def pictures_of_run(run: Run) -> dict[str, Figure]:
    """All of them."""
    return {name: picture_of_run(run, name) for name in picture_titles(run)}


def picture_titles(run: Run) -> dict[str, str]:
    """The pictures that a run has, by name, and what each shows."""
    return PICTURES | OF_REPLICAS if run.replicas else PICTURES


def heading_of(run: Run) -> Heading:
    """What stands on them: the run's title, and the command that repeats it."""
    options = options_of_run(run.configuration)
    return Heading(run.title, command_line(run.configuration["command"], options))
