"""``kvtwin compare``: runs side by side, differences first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvtwin.experiments.comparison.facts import compare_facts
from kvtwin.experiments.comparison.text import text_lines
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.runs.reader import Run

EPILOGUE = """\
Differences are to the first run. Requests are compared where the runs sent the same ones.

example:
  kvtwin compare first-run second-run      # of `kvtwin replay TRACE --out first-run`; points of a sweep are runs, too
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    add = parser.add_argument
    add("runs", metavar="RUN", type=Path, nargs="+", help="folder of a replay (--out); at least two")
    add("--all", action="store_true", help="print what is equal as well")
    add("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Compare the runs with the first of them."""
    if len(args.runs) < 2:
        raise UserError("RUN: expected at least two runs to compare")
    facts = compare_facts([Run(path) for path in args.runs])
    print(json.dumps(facts, indent=2, allow_nan=False) if args.json else "\n".join(text_lines(facts, args.all)))
    return 0
