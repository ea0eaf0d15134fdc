"""What is known beforehand: who arrives when, and at which instants somebody asks what is cached of a prompt."""

from __future__ import annotations

from kvtwin.engine.compiled.key_table import find
from kvtwin.engine.compiled.loop import queue
from kvtwin.engine.compiled.loop.state import (
    ARRIVES_NS,
    ARRIVING,
    ASKED_FIRST_RUN,
    ASKED_MOST_BLOCKS,
    ASKED_NS,
    ASKED_NUM_RUNS,
    LAST_NS,
    NEXT_ARRIVAL,
    NEXT_QUESTION,
    NUM_ARRIVALS,
    NUM_QUESTIONS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable
from kvtwin.engine.compiled.pool_functions import NULL_BLOCK


@compilable
def next_arrival_ns(loop: LoopArrays) -> int:
    """When the next expected request arrives; ``LAST_NS`` without one."""
    place = loop.numbers[NEXT_ARRIVAL]
    return loop.arrivals[place, ARRIVES_NS] if place < loop.numbers[NUM_ARRIVALS] else LAST_NS


@compilable
def arrive(loop: LoopArrays, until_ns: int) -> None:
    """``Scheduler.add_request`` for all that arrive up to an instant."""
    numbers = loop.numbers
    while numbers[NEXT_ARRIVAL] < numbers[NUM_ARRIVALS] and next_arrival_ns(loop) <= until_ns:
        queue.append(loop, loop.arrivals[numbers[NEXT_ARRIVAL], ARRIVING])
        numbers[NEXT_ARRIVAL] += 1


@compilable
def answer(loop: LoopArrays, until_ns: int) -> None:
    """Answer what is asked up to an instant before which nothing changes any more."""
    numbers = loop.numbers
    while numbers[NEXT_QUESTION] < numbers[NUM_QUESTIONS]:
        place = numbers[NEXT_QUESTION]
        if loop.questions[place, ASKED_NS] > until_ns:
            return
        loop.answers[place] = _num_cached_blocks(loop, place)
        numbers[NEXT_QUESTION] += 1


@compilable
def _num_cached_blocks(loop: LoopArrays, question: int) -> int:
    """``KVCacheManager.num_cached_tokens``, in blocks."""
    asked, runs = loop.questions[question], loop.question_runs
    num_blocks, most_blocks = 0, asked[ASKED_MOST_BLOCKS]
    for run in range(asked[ASKED_FIRST_RUN], asked[ASKED_FIRST_RUN] + asked[ASKED_NUM_RUNS]):
        first_key, step, count = runs[3 * run], runs[3 * run + 1], runs[3 * run + 2]
        for index in range(min(count, most_blocks - num_blocks)):
            if find(loop.pool, first_key + index * step) == NULL_BLOCK:
                return num_blocks + index
        num_blocks = min(num_blocks + count, most_blocks)
    return num_blocks
