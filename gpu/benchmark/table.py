"""The short table that ``gpu/check.sh`` ends with: what was measured beside what was hoped for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.gpu.benchmark.results import Results


class Goal(NamedTuple):
    """Of one figure of a case: what is to be reached, and what would be more."""

    figure: str
    goal: float
    stretch: float
    is_most: bool = False
    """Whether less is better."""

    def verdict(self, value: float) -> str:
        """How far the value got."""
        better = (lambda bound: value <= bound) if self.is_most else (lambda bound: value >= bound)
        reached = "stretch goal reached" if better(self.stretch) else "goal reached" if better(self.goal) else "missed"
        bound = f"{'at most' if self.is_most else 'at least'} {_figure(self.figure, self.goal)}"
        return f"{reached} ({bound}, stretch {_figure(self.figure, self.stretch)})"


GOALS = {
    "decode 64 x 8k": Goal("of_copy", 0.90, 0.95),
    "decode 16 x 4k": Goal("of_copy", 0.80, 0.87),
    "decode 1 x 128k": Goal("of_copy", 0.85, 0.90),
    "decode 64 ragged": Goal("of_copy", 0.85, 0.90),
    "decode 1 x 8k": Goal("us", 15.0, 12.0, is_most=True),
    "prefill 8k": Goal("of_multiply", 0.45, 0.55),
}
"""As shares of what the same device copies, or multiplies, in the same run."""

_WORTH_TELLING = ("steps that", "steps with", "Evictions", "Preemptions", "check ", "passed", "FAILED", "kvtwin: error")
"""How lines begin that commands print and that belong in the table."""


def main() -> None:
    """Print the table for the folder that is named on the command line."""
    folder = Path(sys.argv[1])
    rows = Results(folder / "results.jsonl").read()
    print("\n== results" + (" of a dry run: nothing here says how fast anything is" if _is_dry(rows) else ""))
    for row in rows:
        if row["phase"] != "phases":
            print(f"{row['phase']:<13}{row['case']:<42}{_figures(row)}{_goal(row)}")
    for log in (folder / f"{row['case']}.txt" for row in rows if row["phase"] == "phases"):
        for line in log.read_text("utf-8", errors="replace").splitlines() if log.exists() else []:
            if line.startswith(_WORTH_TELLING):
                print(f"{log.stem:<16}{line[:150]}")
    print()
    for row in rows:
        if row["phase"] == "phases":
            print(f"{row['case']:<16}{row['ended']:<14}{row['s']} s")
    print(f"all of it is in {folder}")


def _is_dry(rows: list[dict[str, Any]]) -> bool:
    return any("dry run" in str(row.get("name")) for row in rows)


def _figures(row: dict[str, Any]) -> str:
    return "".join(f"{name} {_figure(name, value)}  " for name, value in row.items() if name not in ("phase", "case"))


def _figure(name: str, value: Any) -> str:
    if name.startswith("of_"):
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _goal(row: dict[str, Any]) -> str:
    case, _, kernel = row["case"].partition(" | ")
    goal = GOALS.get(case)
    if goal is None or kernel != "kvtwin" or goal.figure not in row:
        return ""
    return goal.verdict(row[goal.figure])


if __name__ == "__main__":
    main()
