"""``kvtwin report``: one HTML page about a run or a sweep, which loads nothing from a network."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.results import ReportOptions

OPTIONS = ReportOptions

EPILOGUE = """\
For a run: the result in words, and its timeline, hit rate and latencies as figures to zoom into. If it was replayed
with --events, also a film of the pool's blocks. For a sweep: a sortable table of its points, and figures. For a
validation, a curve, limits and isolation: what was printed, and its pictures.

examples:
  kvtwin replay demo --num-gpu-blocks-override 1800 --max-model-len 8192 --events --out first-run
  kvtwin report first-run --out first-run.html
"""


def run(options: ReportOptions) -> int:
    """Write the page, and print its name."""
    from kvtwin.experiments.files.new import check_new
    from kvtwin.experiments.files.whole import whole_file
    from kvtwin.experiments.report_page.pages import page_of

    if options.out:
        check_new(options.out)
    path = options.out or options.folder / "report.html"
    html = page_of(options.folder)
    try:
        with whole_file(path) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror or error}") from None
    print(path)
    return 0
