"""A connector's storage and its transfers that follow a plan: the same for the real scheduler and for ours.

Imports neither. A request's ``plan``: ``remote_tokens`` of its prompt are elsewhere; ``is_async``; the first ``defer``
questions are answered "ask again"; a load is over ``delay`` steps after the one that started it; of the loaded blocks
those at ``invalid`` positions are lost (counted from the first, modulo their number), or all of it has ``failed``;
``keeps``: for how many steps its blocks are kept after it ended by itself; ``again``: also a later lookup finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PLAN_DEFAULTS: dict[str, Any] = {
    "remote_tokens": 0,
    "is_async": True,
    "defer": 0,
    "delay": 1,
    "invalid": (),
    "failed": False,
    "keeps": 0,
    "again": False,
}


@dataclass
class _Load:
    request_id: str
    due: int
    is_async: bool
    invalid_blocks: list[int]
    failed: bool


@dataclass
class PlannedTransfers:
    """What the plans say, step by step."""

    plans: dict[str, dict[str, Any]]
    block_size: int
    step: int = 0
    """The number of the step that is being decided."""
    local_tokens: dict[str, int] = field(default_factory=dict)
    loads: list[_Load] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    ended_tables: list[list[Any]] = field(default_factory=list)
    """Ids of requests that ended, and the blocks of their computed tokens, since they were last taken."""

    def match(self, request_id: str, num_local_tokens: int) -> tuple[int, bool] | None:
        plan = self.plans.get(request_id)
        if plan is None:
            return 0, False
        if plan["defer"] > 0:
            plan["defer"] -= 1
            return None
        self.local_tokens[request_id] = num_local_tokens
        num_tokens = max(0, plan["remote_tokens"] - num_local_tokens)
        return num_tokens, num_tokens > 0 and plan["is_async"]

    def allocated(self, request_id: str, blocks: list[int], num_remote_tokens: int) -> None:
        if not num_remote_tokens:
            return
        plan = self.plans[request_id]
        first = self.local_tokens[request_id] // self.block_size
        end = -(-(self.local_tokens[request_id] + num_remote_tokens) // self.block_size)
        loaded = [block for block in blocks[first:end] if block]
        invalid = [loaded[position % len(loaded)] for position in plan["invalid"] if loaded]
        due = self.step + (plan["delay"] if plan["is_async"] else 0)
        self.loads.append(_Load(request_id, due, plan["is_async"], invalid, plan["failed"]))
        if not plan["again"]:
            plan["remote_tokens"] = 0

    def finished(self, request_id: str, block_tables: Sequence[Sequence[int]], *, by_itself: bool) -> bool:
        self.ended_tables.append([request_id, [list(table) for table in block_tables]])
        keeps = self.plans.get(request_id, PLAN_DEFAULTS)["keeps"] if by_itself else 0
        if keeps:
            self.kept[request_id] = self.step + keeps
        return keeps > 0

    def take_ended_tables(self) -> list[list[Any]]:
        ended, self.ended_tables = self.ended_tables, []
        return ended

    def carry_out(self) -> dict[str, list[Any]]:
        """What is reported with the result of the step that was just decided; the next one begins."""
        due = [load for load in self.loads if load.due <= self.step]
        sent = [request_id for request_id, step in self.kept.items() if step <= self.step]
        self.loads = [load for load in self.loads if load.due > self.step]
        self.kept = {request_id: step for request_id, step in self.kept.items() if step > self.step}
        self.step += 1
        return {
            "received": [load.request_id for load in due if load.is_async],
            "sent": sent,
            "invalid_blocks": sorted(block for load in due for block in load.invalid_blocks),
            "failed": [load.request_id for load in due if load.failed and load.is_async],
        }


def planned_transfers(config: dict[str, Any], lines: list[dict[str, Any]]) -> PlannedTransfers:
    """Those of a case."""
    plans = {str(line["id"]): PLAN_DEFAULTS | line["plan"] for line in lines if line.get("plan")}
    groups = config["groups"] or [{}]
    return PlannedTransfers(plans, groups[0].get("block_size", config["block_size"]))
