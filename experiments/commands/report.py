"""``kvtwin report``: one HTML page about a run or a sweep, which loads nothing from a network."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.results import ReportOptions

OPTIONS = ReportOptions

EPILOGUE = """\
Of a run: what came of it in words, its timeline, hit rate and latencies to zoom into, and, after `kvtwin replay
--events`, the blocks of the pool as a film. Of a sweep: its points as a table to sort, and in figures.

examples:
  kvtwin replay demo --num-gpu-blocks-override 1800 --max-model-len 8192 --events --out first-run
  kvtwin report first-run --out first-run.html
"""


def run(options: ReportOptions) -> int:
    """Write the page, and print its name."""
    from kvtwin.experiments.files.whole import whole_file
    from kvtwin.experiments.report_page.pages import page_of

    path = options.out or options.folder / "report.html"
    html = page_of(options.folder)
    try:
        with whole_file(path) as partial:
            partial.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror or error}") from None
    print(path)
    return 0
