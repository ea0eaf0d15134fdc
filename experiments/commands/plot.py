"""``kvtwin plot``: pictures of what a command left."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.results import PlotOptions

OPTIONS = PlotOptions

EPILOGUE = """\
For a run: a timeline (cache, requests, preemptions), the distribution of latencies, and the sources of misses. For a
sweep: hit rate and preemptions over each numeric option, and as a table over each pair of them. Also the misses of each
point, and what its memory was used for while requests waited. Results of `kvtwin curve`, `limit`, `isolation` and
`validate` have pictures too, where --out kept them. Every picture is written as PNG and SVG, and names the command that
made what it shows.

examples:
  kvtwin plot first-run                       # from `kvtwin replay demo --out first-run`
  kvtwin plot first-sweep --metrics mean_ttft_ms,num_preemptions     # from `kvtwin sweep SPEC.yaml --out first-sweep`
"""


def run(options: PlotOptions) -> int:
    """Draw, and print the names of the files."""
    from kvtwin.experiments.files.new import check_new
    from kvtwin.experiments.pictures.figure import paths_of, save
    from kvtwin.experiments.pictures.of_folder import pictures_of

    figures, command = pictures_of(options.folder, options.metrics)

    folder = options.out or options.folder / "plots"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths_of(folder, figures) if options.out else ():
            check_new(path)
        print(f"drawn from: {command}")
        for name, figure in figures.items():
            for path in save(figure, folder, name):
                print(path)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}") from None
    return 0
