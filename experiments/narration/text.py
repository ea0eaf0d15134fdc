"""A narration as text: one event per line, runs of equal steps folded into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtwin.experiments.narration.event import Event
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.time_units import SECOND_NS

_MOST_NAMES = 5
"""Requests, or runs of blocks, that a line names."""

_DETAILS = ("take", "cache", "copy")
"""Events that come before the one that they belong to, and are shown on its line."""


@dataclass
class _Line:
    """One event, or several alike in steps that follow each other, with what belongs to them."""

    events: list[Event]
    details: list[Event] = field(default_factory=list)

    def __str__(self) -> str:
        first, last = self.events[0], self.events[-1]
        steps = "-" if first.step is None else str(first.step)
        if last.step != first.step:
            steps += f"-{last.step}"
        return f"{steps:>15}  {first.time_ns / SECOND_NS:>13.6f}  {_TEXTS[first.kind](self)}"

    def takes(self, event: Event) -> bool:
        """Whether ``event`` is the same in a later step."""
        first = self.events[0]
        if event.kind != first.kind or event.kind not in _SAME:
            return False
        return all(event.facts.get(name) == first.facts.get(name) for name in _SAME[event.kind])

    def range(self, name: str) -> str:
        """The minimum and maximum of a fact."""
        values = [event.facts[name] for event in self.events]
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    def total(self, name: str) -> int:
        return sum(event.facts[name] for event in self.events)


_SAME = {"wait": ("reason", "head"), "decode": (), "idle": ("reason",)}
"""Events that fold, and which facts have to be equal."""


def narration_lines(events: Iterable[Event]) -> list[str]:
    """Step, simulated time, what happened."""
    lines: list[_Line] = []
    details: list[Event] = []
    for event in events:
        if event.kind in _DETAILS:
            details.append(event)
            continue
        if not lines or not lines[-1].takes(event):
            lines.append(_Line([]))
        lines[-1].events.append(event)
        lines[-1].details += details
        details = []
    return [f"{'step':>15}  {'time (s)':>13}", *map(str, lines)]


def _arrive(line: _Line) -> str:
    facts = line.events[0].facts
    priority = f", priority {facts['priority']}" if facts["priority"] else ""
    return (
        f"arrives: {facts['prompt_tokens']:,} prompt tokens, at most {facts['max_tokens']:,} output tokens{priority}; "
        f"{facts['ahead']:,} ahead of it in the queue, {facts['running']:,} running"
    )


def _wait(line: _Line) -> str:
    facts = line.events[0].facts
    number = f" {number_of(len(line.events), 'step')}" if len(line.events) > 1 else ""
    text = f"waits{number}, {line.range('ahead')} ahead in the queue: {facts['reason']}"
    if "needed_blocks" in facts:
        who = "it" if "hit_tokens" in facts else facts["head"]
        text += f": {who} needs {_demand(line)}"
        if "largest_range" in facts:
            text += f", at most {line.range('largest_range')} contiguous"
    if "hit_tokens" in facts:
        text += f"; it would hit {line.range('hit_tokens')} tokens"
    if "preempted" in facts:
        text += f" ({', '.join(dict.fromkeys(name for event in line.events for name in event.facts['preempted']))})"
    return text


def _demand(line: _Line) -> str:
    """What is asked of the pool, and what it has."""
    parts = [
        f"{line.range(name)} {what}"
        for name, what in (
            ("new_blocks", "new"),
            ("idle_hit_blocks", "cached, now free"),
            ("reserved_blocks", "kept free by the watermark"),
        )
        if any(event.facts[name] for event in line.events)
    ]
    needed, free = line.range("needed_blocks"), line.range("free_blocks")
    return f"{needed} block{'' if needed == '1' else 's'} ({', '.join(parts)}), {free} free"


def _lookup(line: _Line) -> str:
    facts = line.events[0].facts
    if facts["swapped"]:
        return (
            f"still has {facts['hit_tokens']:,} computed tokens, {number_of(facts['loaded_blocks'], 'block')} of them "
            f"in host memory"
        )
    extra = [
        f", {facts[name]:,} {what}"
        for name, what in (
            ("external_tokens", "of them in host memory"),
            ("phantom_tokens", "in blocks that were never filled"),
            ("junction_tokens", "tokens cached in some groups only"),
        )
        if facts[name]
    ]
    text = f"looks up {facts['known_tokens']:,} tokens: hits {facts['hit_tokens']:,}{''.join(extra)}"
    return "; ".join([text, *(_group(group, len(facts["groups"]) > 1) for group in facts["groups"])])


def _group(group: dict[str, Any], is_named: bool) -> str:
    real = [block for block in group["hit_blocks"] if block]
    name = f"group {group['group']} ({group['kind']}): " if is_named else ""
    text = f"{name}{len(real):,} of {group['full_blocks']:,} full blocks{_ids(real)}"
    broken = group["broken"]
    if broken is None:
        return f"{text}, all that can be hit"
    text += f"; the next, block {broken['position']} (from token {broken['first_token']:,}),"
    if "taken_by" in broken:
        step = broken["evicted_in_step"]
        return f"{text} was cached for {broken['cached_for']} and evicted in step {step} for {broken['taken_by']}"
    return f"{text} {'is cached but cannot be used' if 'cached' in broken else 'was never computed'}"


def _gate(line: _Line) -> str:
    return f"needs {_demand(line)}"


def _admit(line: _Line) -> str:
    facts = line.events[0].facts
    verb = "resumes" if facts["resumed"] else "starts"
    fork = ""
    if "fork_of" in facts:
        shared = [block for table in facts["shared_blocks"] for block in table if block]
        fork = f" with the prompt of {facts['fork_of']}, sharing {number_of(len(shared), 'block')}{_ids(shared)}"
    return f"{verb}{fork}, {facts['running']:,} running: {_computes(line)}"


def _prefill(line: _Line) -> str:
    return f"continues: {_computes(line)}"


def _computes(line: _Line) -> str:
    facts = line.events[0].facts
    end = facts["computed_tokens"] + facts["tokens"]
    return (
        f"computes tokens {facts['computed_tokens']:,} to {end - 1:,} ({facts['tokens']:,} of a token budget of "
        f"{facts['budget_before']:,}){_drafts(facts['drafts'])}{_details(line)}"
    )


def _decode(line: _Line) -> str:
    first = line.events[0].facts["computed_tokens"]
    last = line.events[-1].facts["computed_tokens"] + line.events[-1].facts["tokens"] - 1
    where = f"token {first:,}" if first == last else f"tokens {first:,} to {last:,}"
    number = f" {number_of(len(line.events), 'step')}" if len(line.events) > 1 else ""
    return f"decodes{number}: {where}{_drafts(line.total('drafts'))}{_details(line)}"


def _drafts(number: int) -> str:
    return f", {number:,} drafts among them" if number else ""


def _idle(line: _Line) -> str:
    steps = "the step" if len(line.events) == 1 else number_of(len(line.events), "step")
    return f"is running but not scheduled in {steps}: {line.events[0].facts['reason']}"


def _details(line: _Line) -> str:
    taken = [event.facts for event in line.details if event.kind == "take"]
    blocks = [block for facts in taken for group in facts["blocks"] for block in group if block]
    text = f"; takes {number_of(len(blocks), 'block')}{_ids(blocks)}" if blocks else ""
    copies = [event.facts["block"] for event in line.details if event.kind == "copy"]
    if copies:
        text += f"; copies shared blocks before it writes, to {number_of(len(copies), 'block')}{_ids(copies)}"
    owners = Counter(one["cached_for"] for facts in taken for one in facts["evicted"] if "cached_for" in one)
    if owners:
        whose = ", ".join(f"{number:,} of {owner}" for owner, number in owners.most_common(_MOST_NAMES))
        whose += ", ..." if len(owners) > _MOST_NAMES else ""
        text += f"; evicts {owners.total():,} cached ({whose})"
    return text


def _preempt(line: _Line) -> str:
    facts = line.events[0].facts
    if facts["needed_by"] is None:
        why = "the prefix cache is reset"
    else:
        why = f"{'it' if facts['needed_by_itself'] else facts['needed_by']} needs {_demand(line)}"
    return (
        f"is preempted: {why}; loses {facts['computed_tokens']:,} computed tokens, keeps {facts['output_tokens']:,} "
        f"output tokens"
    )


def _free(line: _Line) -> str:
    facts = line.events[0].facts
    if "slots" in facts:
        return f"frees its range of {facts['slots']:,} slots"
    parts = [
        f"{number_of(len(facts[name]), 'block')}{_ids(facts[name])} {what}"
        for name, what in (
            ("reused_first", "without a key, reused first"),
            ("evicted_last", "still cached, evicted last"),
            ("held_by_others", "still held by others"),
        )
        if facts[name]
    ]
    saved = "; its computed tokens are saved in host memory" if facts["saved_in_host"] else ""
    return f"frees, in this order: {'; '.join(parts)}{saved}"


def _end(line: _Line) -> str:
    facts = line.events[0].facts
    message = f" ({facts['message']})" if facts["message"] else ""
    return (
        f"ends: {facts['reason']}{message}, {number_of(facts['output_tokens'], 'output token')}, "
        f"{number_of(facts['preemptions'], 'preemption')}"
    )


def _ids(blocks: Sequence[int]) -> str:
    """Block ids in order, runs up or down as one."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and abs(block - runs[-1][1]) == 1 and (runs[-1][0] == runs[-1][1] or _goes_on(runs[-1], block)):
            runs[-1][1] = block
        else:
            runs.append([block, block])
    if not runs:
        return ""
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:_MOST_NAMES]]
    return f" [{' '.join(texts)}{' ...' if len(runs) > _MOST_NAMES else ''}]"


def _goes_on(run: Sequence[int], block: int) -> bool:
    return (block > run[1]) == (run[1] > run[0])


_TEXTS = {
    "arrive": _arrive,
    "wait": _wait,
    "lookup": _lookup,
    "gate": _gate,
    "admit": _admit,
    "prefill": _prefill,
    "decode": _decode,
    "idle": _idle,
    "preempt": _preempt,
    "free": _free,
    "end": _end,
}
