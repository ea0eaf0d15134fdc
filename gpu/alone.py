"""One request alone on the executor that served a crowd: what it says then, and what with a broken block table."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.block_keys import TokenContent
from engine.block_pool import NULL_BLOCK
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executor import ReplacedBlock, Step
from engine.request import Request
from engine.scheduler import Scheduler
from gpu.executor import DeviceExecutor


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a request asked and was told."""

    request_id: str
    prompt: Sequence[int]
    output: Sequence[int]
    logits: Sequence[float]
    """Of the output tokens, as the executor computed them."""


def say_alone(
    executor: DeviceExecutor,
    config: EngineConfig,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    shifts_blocks: bool = False,
    poisons: bool = False,
) -> Transcript:
    """Serve ``prompt`` alone, with an engine and an empty pool of its own, until it said ``num_tokens``.

    With ``shifts_blocks`` the device is told, once the request decodes, that each of its blocks comes one later, behind
    block 0: it then reads slots that nobody filled, and misses the latest tokens. (Exchanging blocks would not do: what
    full ones hold is attended to whatever their place, and there may be only one.)

    ``executor`` keeps records, and nothing of it is under way; what is served here is not left in its record.
    """
    scheduler = Scheduler(config)
    core = EngineCore(scheduler)
    request = Request("alone", len(prompt), num_tokens, TokenContent(scheduler.keys, prompt))
    if poisons:
        executor.poison(scheduler.kv_cache.pool)
    scheduler.add_request(request)
    first = len(executor.executed)
    tickets: deque[Any] = deque()
    while core.has_work():
        step = core.schedule_next()
        if step is not None:
            if shifts_blocks and step.requests and step.num_computed_tokens[0] >= len(prompt):
                shifts_blocks = False
                _shift_blocks(step, request)
            tickets.append(executor.submit(step))
        if core.must_collect():
            core.process(executor.collect(tickets.popleft()).tokens)
    steps = executor.executed[first:]
    del executor.executed[first:]
    return Transcript(
        request.request_id,
        prompt,
        [token for step in steps for tokens in step.tokens for token in tokens],
        [logit for step in steps for logits in step.logits for logit in logits],
    )


def _shift_blocks(step: Step, request: Request) -> None:
    shifted = [NULL_BLOCK, *request.block_tables[0][:-1]]
    step.replaced_blocks += [ReplacedBlock(request, 0, position, block) for position, block in enumerate(shifted)]
