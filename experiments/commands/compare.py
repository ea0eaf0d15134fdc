"""``kvtwin compare``: runs side by side, differences first."""

from __future__ import annotations

import json

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.results import CompareOptions

OPTIONS = CompareOptions

EPILOGUE = """\
Every run is compared with the first. Requests are compared if the runs have the same ones.

example:
  kvtwin compare first-run second-run      # folders of `kvtwin replay --out`; points of a sweep work too
"""


def run(options: CompareOptions) -> int:
    """Compare the runs with the first of them."""
    from kvtwin.experiments.comparison.facts import compare_facts
    from kvtwin.experiments.comparison.text import text_parts
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.records.reader import Run

    if len(options.runs) < 2:
        raise UserError("RUN: expected at least two runs to compare")
    facts = compare_facts([Run(path) for path in options.runs])
    if options.json:
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        show(*text_parts(facts, options.all))
    return 0
