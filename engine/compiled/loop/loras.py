"""Who may run now (equals ``Scheduler._must_skip``)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop.state import (
    LORA,
    MAX_LORAS,
    NUM_ACTIVE_LORAS,
    NUM_IN_FLIGHT_SAMPLES,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def must_skip(loop: LoopArrays, request: int) -> bool:
    """``Scheduler._must_skip``: its output is on the way, or as many other adapters run as may."""
    row = loop.requests[request]
    if row[NUM_IN_FLIGHT_SAMPLES] > 0:
        return True
    if row[LORA] == 0 or loop.numbers[NUM_ACTIVE_LORAS] < loop.settings[MAX_LORAS]:
        return False
    return bool(loop.lora_holders[row[LORA]] == 0)


@compilable
def takes_hold(loop: LoopArrays, request: int) -> None:
    """``request`` runs from now on."""
    lora = loop.requests[request, LORA]
    if lora > 0:
        if loop.lora_holders[lora] == 0:
            loop.numbers[NUM_ACTIVE_LORAS] += 1
        loop.lora_holders[lora] += 1


@compilable
def lets_go(loop: LoopArrays, request: int) -> None:
    """``request`` does not run any more."""
    lora = loop.requests[request, LORA]
    if lora > 0:
        loop.lora_holders[lora] -= 1
        if loop.lora_holders[lora] == 0:
            loop.numbers[NUM_ACTIVE_LORAS] -= 1
