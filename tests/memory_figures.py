"""Predicted against logged KV cache memory: the table of docs/accuracy.md, from tests/start_up_logs.

``python -m tests.memory_figures`` prints it as Markdown; ``make figures`` runs it with the others.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvtwin.engine.sizing.memory_budget import (
    GIB,
    MemoryBudget,
    Server,
    default_max_num_batched_tokens,
    default_max_num_seqs,
    memory_budget,
    rules_of,
)
from kvtwin.experiments.catalogue.models import load_model

FOLDER = Path(__file__).parent / "start_up_logs"


@dataclass(frozen=True)
class Compared:
    """One log: its fields, and the budget that is predicted for it."""

    log: dict[str, Any]
    budget: MemoryBudget

    @property
    def logged_gib(self) -> float:
        return self.log["logged"]["available"]

    @property
    def predicted_gib(self) -> float:
        return self.budget.available_bytes / GIB

    @property
    def interval_gib(self) -> tuple[float, float]:
        low, high = self.budget.available_interval
        return low / GIB, high / GIB

    @property
    def error_share(self) -> float:
        """Predicted less logged, as a share of the GPU's memory."""
        return (self.predicted_gib - self.logged_gib) / self.log["total_gib"]

    @property
    def is_inside(self) -> bool:
        low, high = self.interval_gib
        return low <= self.logged_gib <= high


def read_logs() -> list[dict[str, Any]]:
    return yaml.safe_load((FOLDER / "logs.yaml").read_text("utf-8"))


def compare(log: dict[str, Any]) -> Compared:
    """The budget of the server that wrote the log, by the rules of its version."""
    model = log["model"]
    shape = load_model(str(FOLDER / model) if model.endswith(".json") else model)
    total_bytes = round(log["total_gib"] * GIB)
    tokens = log.get("max_num_batched_tokens") or default_max_num_batched_tokens(total_bytes, log["gpu"])
    num_seqs = log.get("max_num_seqs") or default_max_num_seqs(total_bytes, log["gpu"], tokens)
    server = Server(
        max_num_batched_tokens=tokens,
        max_num_seqs=num_seqs,
        tensor_parallel_size=log.get("tensor_parallel_size", 1),
        pipeline_parallel_size=log.get("pipeline_parallel_size", 1),
        enforce_eager=log.get("enforce_eager", False),
        reads_images=log.get("reads_images", True),
        num_drafts=log.get("num_drafts", 0),
        gpu_name=log["gpu"],
    )
    major, minor = (int(part) for part in log["version"].split(".")[:2])
    rules = rules_of((major, minor))
    utilization = log["gpu_memory_utilization"]
    budgets = [
        memory_budget(shape, server, total_bytes=total_bytes, utilization=utilization, rules=rules, rank=rank)
        for rank in range(server.pipeline_parallel_size)
    ]
    return Compared(log, min(budgets, key=lambda budget: budget.available_bytes))


def rows(compared: list[Compared]) -> None:
    print("| model | GPU | vLLM | logged (GiB) | predicted | interval | error (% of the GPU) |")
    print("| --- | --- | --- | --: | --: | --- | --: |")
    for each in compared:
        log = each.log
        count = log.get("tensor_parallel_size", 1) * log.get("pipeline_parallel_size", 1)
        gpus = f"{count} x " if count > 1 else ""
        low, high = each.interval_gib
        cells = [
            Path(log["model"]).stem if log["model"].endswith(".json") else log["model"],
            f"{gpus}{log['gpu']} at {log['gpu_memory_utilization']:g}",
            log["version"],
            f"{each.logged_gib:.2f}",
            f"{each.predicted_gib:.2f}",
            f"{low:.1f} to {high:.1f}{'' if each.is_inside else ' (outside)'}",
            f"{each.error_share:+.1%}",
        ]
        print(f"| {' | '.join(cells)} |")


def summary(name: str, compared: list[Compared]) -> None:
    errors = [abs(each.error_share) for each in compared]
    inside = sum(each.is_inside for each in compared)
    print(f"{name}: {len(compared)} logs, median error {statistics.median(errors):.1%}, inside {inside}")


def main() -> int:
    compared = [compare(log) for log in read_logs()]
    sets = {name: [each for each in compared if each.log["set"] == name] for name in ("read", "fresh")}
    for name, part in sets.items():
        print(f"\n{name}\n")
        rows(part)
    print()
    for name, part in sets.items():
        summary(name, part)
    summary("all", compared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
