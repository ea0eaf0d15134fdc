"""NIXL in pull mode, as the scheduler sees it: a prefill engine keeps blocks until a decode engine has read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtwin.engine.connectors.connector import Connector, ConnectorRole, RemoteMatch, Transfers
from kvtwin.engine.executor import Step
from kvtwin.engine.request import BlockTables, FinishReason, Request

_KEEPS_BLOCKS = (FinishReason.LENGTH, FinishReason.STOP)


@dataclass(frozen=True, slots=True)
class RemotePrefill:
    """What a prefill engine says of a prompt that it computed and keeps."""

    engine: int
    request_id: str
    block_tables: BlockTables
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Read:
    """Blocks to read from another engine; none: only to tell it that it may free its blocks."""

    request_id: str
    remote: RemotePrefill
    blocks: list[int]
    """Of this engine, those that have no key yet: the last ones of the prompt, in order."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Remote and local block of each copy: the remote table's end, since what comes before is cached here."""
        (table,) = self.remote.block_tables
        return list(zip(table[len(table) - len(self.blocks) :], self.blocks, strict=True)) if self.blocks else []


@dataclass(slots=True)
class NixlTransfers:
    """What a step asks of the executor's worker."""

    reads: list[Read] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Requests that ended here and whose blocks are kept from now on, under a lease."""

    def __bool__(self) -> bool:
        return bool(self.reads or self.kept)


class NixlConnector(Connector):
    """NIXL's scheduler side, as in vLLM 0.33, for caches of one group of full attention.

    Whoever sends a request says before what is special about it: :meth:`keep` where another engine will read it,
    :meth:`pull` where another engine has computed it. All other requests are served as without a connector.

    Invariants: a request is pulled at most once, however often it is preempted; of a pulled request that never came to
    be allocated the other engine is told all the same.
    """

    def __init__(self, role: ConnectorRole, engine: int) -> None:
        """``engine`` is what other engines know this one by."""
        self.role = role
        self._engine = engine
        self._to_keep: set[str] = set()
        self._to_pull: dict[str, RemotePrefill] = {}
        self._computed: dict[str, RemotePrefill] = {}
        self._awaited: dict[str, RemotePrefill] = {}
        self._next = NixlTransfers()

    @property
    def awaited(self) -> Mapping[str, RemotePrefill]:
        """Of requests that came here and have not got their blocks, what others keep for them: heartbeats name it."""
        return self._awaited

    def keep(self, request_id: str) -> None:
        """The next request of this id is to be kept for another engine (``do_remote_decode``)."""
        self._to_keep.add(request_id)

    def pull(self, request_id: str, remote: RemotePrefill) -> None:
        """The next request of this id was computed elsewhere (``do_remote_prefill``)."""
        self._to_pull[request_id] = self._awaited[request_id] = remote

    def take_computed(self, request_id: str) -> RemotePrefill | None:
        """What to tell the engine that will decode a request that ended here; None: nothing was kept."""
        return self._computed.pop(request_id, None)

    # ---------------------------------------------------------------- what the scheduler calls

    def match(self, request: Request, num_local_tokens: int) -> RemoteMatch | None:
        """All of the prompt that is not cached here, read between steps."""
        if request.request_id not in self._to_pull:
            return RemoteMatch(0, is_async=False)
        num_tokens = max(0, request.num_prompt_tokens - num_local_tokens)
        return RemoteMatch(num_tokens, is_async=num_tokens > 0)

    def allocated(self, request: Request, block_tables: BlockTables, num_remote_tokens: int) -> None:
        """Read into those of its blocks that have no key; where all is cached, only tell the other engine."""
        remote = self._to_pull.pop(request.request_id, None)
        if remote is None:
            return
        (table,) = block_tables
        num_cached = request.num_registered_blocks[0] if num_remote_tokens else len(table)
        if not num_remote_tokens:
            self._awaited.pop(request.request_id, None)
        self._next.reads.append(Read(request.request_id, remote, table[num_cached:]))

    def scheduled(self, step: Step) -> NixlTransfers:
        """What was decided since the last step."""
        transfers, self._next = self._next, NixlTransfers()
        return transfers

    def progressed(self, transfers: Transfers) -> None:
        """Heartbeats for what was received end."""
        for request_id in transfers.received:
            self._awaited.pop(request_id, None)

    def finished(self, request: Request, block_tables: BlockTables) -> bool:
        """Keep the blocks of a prompt for which another engine will come; an abort frees them at once."""
        request_id = request.request_id
        self._awaited.pop(request_id, None)
        if (remote := self._to_pull.pop(request_id, None)) is not None:
            self._next.reads.append(Read(request_id, remote, []))
            return False
        if request_id not in self._to_keep:
            return False
        self._to_keep.discard(request_id)
        if request.finish_reason not in _KEEPS_BLOCKS or not any(block_tables):
            return False
        self._computed[request_id] = RemotePrefill(
            self._engine, request_id, [list(table) for table in block_tables], request.num_computed_tokens
        )
        self._next.kept.append(request_id)
        return True

    def has_pending_work(self) -> bool:
        """Whether a step is due though no request is: somebody must be told something."""
        return bool(self._next)
