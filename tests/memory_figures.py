"""Predicted against logged KV cache memory, from tests/start_up_logs: tables of docs/accuracy.md.

``python -m tests.memory_figures`` writes and prints them; ``make accuracy`` runs it too.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvtwin.engine.sizing.drafter import next_token_modules
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
from tests.accuracy import replace_part

SETS = ("read", "fresh", "untouched")
FOLDER = Path(__file__).parent / "start_up_logs"
DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"


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
    drafter = next_token_modules(shape) if log.get("drafts") == "mtp" else None
    budgets = [
        memory_budget(
            shape, server, total_bytes=total_bytes, utilization=utilization, rules=rules, rank=rank, drafter=drafter
        )
        for rank in range(server.pipeline_parallel_size)
    ]
    return Compared(log, min(budgets, key=lambda budget: budget.available_bytes))


def rows(compared: list[Compared]) -> list[str]:
    """The table's lines, in Markdown."""
    lines = [
        "| model | GPU | vLLM | logged (GiB) | predicted | interval | error (% of the GPU) | found at |",
        "| --- | --- | --- | --: | --: | --- | --: | --- |",
    ]
    for each in compared:
        log = each.log
        count = log.get("tensor_parallel_size", 1) * log.get("pipeline_parallel_size", 1)
        gpus = f"{count} x " if count > 1 else ""
        low, high = each.interval_gib
        cells = [
            Path(log["model"]).name.removesuffix(".json"),
            f"{gpus}{log['gpu']} at {log['gpu_memory_utilization']:g}",
            log["version"],
            f"{each.logged_gib:.2f}",
            f"{each.predicted_gib:.2f}",
            f"{low:.1f} to {high:.1f}{'' if each.is_inside else ' (outside)'}",
            f"{each.error_share:+.1%}",
            _where(log["source"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _where(source: str) -> str:
    """A link to the source, or that no address is known: then the words in logs.yaml find it."""
    if not source.startswith("https://"):
        return "no address known"
    address = source.split()[0]
    parts = address.removeprefix("https://github.com/").split("/")
    is_github = address.startswith("https://github.com/")
    return f"[{parts[1]} {parts[3]}]({address})" if is_github else f"[{parts[2]}]({address})"


def median_error(compared: list[Compared]) -> float:
    return statistics.median(abs(each.error_share) for each in compared)


def page() -> list[str]:
    """What docs/accuracy.md shows: both sets, and what they come to."""
    compared = [compare(log) for log in read_logs()]
    sets = {name: [each for each in compared if each.log["set"] == name] for name in SETS}
    lines = ["| logs | number | median error | inside the interval |", "| --- | --: | --: | --: |"]
    for name, part in (*sets.items(), ("all", compared)):
        inside = sum(each.is_inside for each in part)
        lines.append(f"| {name} | {len(part)} | {median_error(part):.1%} | {inside} |")
    for name, part in sets.items():
        lines += ["", f"**{name.capitalize()}**", "", *rows(part)]
    return lines


if __name__ == "__main__":
    replace_part(DOCUMENT, "start-up logs", page())
    print("\n".join(page()))
