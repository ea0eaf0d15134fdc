"""One request alone on the executor that served a crowd: what it says then, and what with a broken block table."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.executor import ReplacedBlock
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.gpu.executor import DeviceExecutor


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
    loses_block: bool = False,
    poisons: bool = False,
) -> Transcript:
    """Serve ``prompt`` alone, with an engine and an empty pool of its own, until it said ``num_tokens``.

    With ``loses_block`` the device is told, once the request decodes, that its first block is block 0: one entry of its
    table is wrong. (Two entries that are exchanged would not do: what full blocks hold is attended to whatever its
    place.)

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
            if loses_block and step.requests and step.num_computed_tokens[0] >= len(prompt):
                loses_block = False
                step.replaced_blocks.append(ReplacedBlock(request, 0, 0, NULL_BLOCK))
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
