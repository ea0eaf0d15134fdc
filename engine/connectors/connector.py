"""What the engine asks of a KV connector, and what it is told of transfers (specification, section 18)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from kvtwin.engine.executor import Step
from kvtwin.engine.request import BlockTables, Request


class RemoteMatch(NamedTuple):
    """Tokens after the device's own hit that the connector can load."""

    num_tokens: int
    is_async: bool
    """Whether they arrive in a later step, and the request waits for them; else the step that admits it loads them."""


class ConnectorRole(Enum):
    """Whether an engine loads through its connector (vLLM's ``kv_role``)."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"

    @property
    def loads(self) -> bool:
        """Whether blocks may be filled by others than the engine's own steps."""
        return self is not ConnectorRole.PRODUCER


@dataclass(slots=True)
class Transfers:
    """What an executor reports with a step's result: transfers that ended, or failed, since the one before."""

    received: list[str] = field(default_factory=list)
    """Requests whose loads are over, successful or not."""
    sent: list[str] = field(default_factory=list)
    """Ended requests whose blocks nobody needs any more."""
    invalid_blocks: set[int] = field(default_factory=set)
    """Blocks that a load should have filled and did not."""
    failed: list[str] = field(default_factory=list)
    """Requests of which nothing arrived; their loads are over when ``received`` names them."""


class Connector:
    """A connector that has nothing and keeps nothing; real ones override what they need."""

    role = ConnectorRole.BOTH

    @property
    def must_deliver(self) -> bool:
        """Whether a preempted request computes its outputs in flight again, to end with blocks to hand over."""
        return self.role is not ConnectorRole.CONSUMER

    def match(self, request: Request, num_local_tokens: int) -> RemoteMatch | None:
        """What is there after the first ``num_local_tokens`` tokens, whole blocks; None: ask again at the next step.

        Asked at each attempt to admit the request, and so without effect.
        """
        return RemoteMatch(0, False)

    def allocated(self, request: Request, block_tables: BlockTables, num_remote_tokens: int) -> None:
        """The request got its blocks; of its tokens ``num_remote_tokens`` are to be loaded into them."""

    def scheduled(self, step: Step) -> Any:
        """What the executor has to transfer with ``step``, which was just decided (``step.transfers``)."""
        return None

    def progressed(self, transfers: Transfers) -> None:
        """What the executor reported."""

    def finished(self, request: Request, block_tables: BlockTables) -> bool:
        """A request ended and still has its blocks: whether they are kept until ``sent`` names it."""
        return False

    def has_pending_work(self) -> bool:
        """Whether steps are needed though no request is left."""
        return False

    def frees_blocks_soon(self) -> bool:
        """Whether blocks will come free by themselves, so that nobody is preempted for a block."""
        return False

    def reset_cache(self) -> bool:
        """Forget all that is kept; whether that was possible."""
        return True
