"""What was measured: a line on the screen and a line of JSON in a file, both written at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Results:
    """A file of results, one JSON object per line: ``phase``, ``case`` and figures. Whoever is cut off leaves what is
    there so far."""

    path: Path

    def add(self, phase: str, case: str, **figures: Any) -> None:
        """Print and keep one result."""
        shown = "  ".join(f"{name} {_text(value)}" for name, value in figures.items())
        print(f"{phase:<12}{case:<44}{shown}", flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"phase": phase, "case": case} | figures) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All that was kept."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]

    def figure(self, phase: str, case: str, name: str) -> float | None:
        """One figure of the last such result; None if there is none."""
        found = [row.get(name) for row in self.read() if (row["phase"], row["case"]) == (phase, case)]
        return found[-1] if found else None


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
