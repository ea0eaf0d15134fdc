"""Whose cache and scheduler a run has: vLLM's, or those of another server, behind the same few methods.

A :class:`ServerProfile` stands in :attr:`kvtwin.engine.config.EngineConfig.server`. It makes the scheduler, so nothing
in vLLM's own path asks which server it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from kvtwin.engine.server_identity import ServerIdentity, VllmServer

if TYPE_CHECKING:
    from kvtwin.engine.block_keys import KeySpace
    from kvtwin.engine.block_metrics import BlockMetrics
    from kvtwin.engine.cache_groups import FindBlock
    from kvtwin.engine.config import EngineConfig
    from kvtwin.engine.encoder_cache import EncoderCache, NoEncoder
    from kvtwin.engine.executor import Step
    from kvtwin.engine.observer import Observer
    from kvtwin.engine.pool_listener import PoolListener
    from kvtwin.engine.request import FinishReason, Request
    from kvtwin.engine.retention import Retention
    from kvtwin.engine.scheduler import Scheduler
    from kvtwin.engine.statistics import EngineStatistics

SERVERS = ("vllm", "trtllm", "sglang")
"""Names of ``--server``."""


class ServerPool(Protocol):
    """The device's blocks, as whoever watches a server sees them."""

    listeners: list[PoolListener]
    """Told what becomes of blocks."""
    num_evictions: int
    """Blocks that could be hit until they were handed out again."""

    @property
    def num_usable_blocks(self) -> int:
        """All that there are."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, cached or not."""


class ServerEvents(Protocol):
    """A server's KV events."""

    def take(self) -> list[Any]:
        """Those since the last call, in order: dataclasses, whose names and fields are the server's."""


class ServerCache(Protocol):
    """A server's KV cache, as whoever watches it sees it."""

    @property
    def pool(self) -> ServerPool:
        """The device's memory."""

    @property
    def events(self) -> ServerEvents | None:
        """The KV events since they were last taken; None where nobody asked for them, or nothing is cached."""

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """Leading tokens of ``request`` that the device could serve now."""


class WaitingRequests(Protocol):
    """Requests in order."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class ServerScheduler(Protocol):
    """What a simulation asks of a scheduler: :class:`kvtwin.engine.scheduler.Scheduler` says what each means."""

    config: EngineConfig
    keys: KeySpace
    statistics: EngineStatistics
    running: list[Request]
    retention: Retention
    """Also told the time (``advance_to``) before each step and before each output."""
    encoder: EncoderCache | NoEncoder
    block_metrics: BlockMetrics | None

    @property
    def kv_cache(self) -> ServerCache:
        """Where requests keep their tokens."""

    @property
    def waiting(self) -> WaitingRequests:
        """Requests that are not running, in the order in which they will."""

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` all that happens to requests from now on."""

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait, or reject it at once. ValueError: a live request has the same id."""

    def start_counting(self) -> None:
        """Begin all counts at 0: what came before was to warm up."""

    def has_requests(self) -> bool:
        """Whether there is anything to schedule, or finished requests to report."""

    def take_ended(self) -> list[Request]:
        """Requests that ended since the last call, in order."""

    def end(self, request: Request, reason: FinishReason, message: str = "") -> None:
        """Count a request as ended that the engine does not hold any more."""

    def schedule(self) -> Step:
        """Decide the next step; its tokens count as computed from now on."""

    def update(self, step: Step, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> None:
        """Deliver the output tokens of a step's requests."""


class StateChecker(Protocol):
    """Recomputes from scratch what a scheduler keeps up step by step."""

    def check(self) -> None:
        """Raise InvariantError for the first contradiction found between two calls of the scheduler."""

    def check_step(self, step: Step) -> None:
        """Raise InvariantError if a step that was just scheduled contradicts itself."""


class ServerProfile(ServerIdentity, Protocol):
    """A server and those of its settings that :class:`~kvtwin.engine.config.EngineConfig` does not have.

    A frozen dataclass: two configurations with equal profiles decide alike.
    """

    def make_scheduler(self, config: EngineConfig, keys: KeySpace | None) -> ServerScheduler:
        """Its scheduler. ``keys`` may be those of other servers with the same ``config.key_settings``."""

    def make_checker(self, scheduler: ServerScheduler) -> StateChecker:
        """The checker of such a scheduler's invariants."""


def make_scheduler(config: EngineConfig, keys: KeySpace | None = None) -> ServerScheduler:
    """The scheduler of a configuration's server. ``keys``: as in :meth:`ServerProfile.make_scheduler`."""
    from kvtwin.engine.scheduler import Scheduler

    if isinstance(config.server, VllmServer):
        return Scheduler(config, keys)
    return cast("ServerProfile", config.server).make_scheduler(config, keys)


def make_checker(config: EngineConfig, scheduler: ServerScheduler) -> StateChecker:
    """The checker of the invariants of a configuration's server."""
    from kvtwin.engine.invariants import InvariantChecker

    if isinstance(config.server, VllmServer):
        return InvariantChecker(cast("Scheduler", scheduler))
    return cast("ServerProfile", config.server).make_checker(scheduler)
