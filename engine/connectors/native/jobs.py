"""Transfers between device and host that a step orders, and the fences that keep a store's source from being reused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class TransferJob:
    """Blocks of one request on their way to the host, or back."""

    index: int
    request_id: str
    is_store: bool
    keys: Sequence[int]
    """Of its chunks."""
    device_blocks: Sequence[int]
    chunks: Sequence[int]
    """Places in the host, parallel to ``keys``."""
    is_sync: bool = False
    """Whether the step waits for it before it computes."""


@dataclass(slots=True)
class OffloadWork:
    """What the executor does with a step.

    First the step waits until the jobs of ``flushes`` are done, its own stores among them. Then loads start, and
    stores that the step *before* ordered; the step computes meanwhile, unless a load is synchronous. Its own stores
    start with the next step.
    """

    loads: list[TransferJob] = field(default_factory=list)
    stores: list[TransferJob] = field(default_factory=list)
    flushes: set[int] = field(default_factory=set)
    """Jobs that must be done before the step writes: their blocks are handed out again, or their request lost them."""

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.flushes)


class Fences:
    """Blocks that stores of ended requests still read, though the pool may hand them out again."""

    def __init__(self) -> None:
        self._jobs_of_block: dict[int, set[int]] = {}

    def add(self, job: TransferJob) -> None:
        """Watch the blocks that ``job`` reads, for its request has ended."""
        for block in job.device_blocks:
            self._jobs_of_block.setdefault(block, set()).add(job.index)

    def remove(self, job: TransferJob) -> None:
        """Watch them no more, if they were watched: ``job`` is done."""
        for block in job.device_blocks:
            jobs = self._jobs_of_block.get(block)
            if jobs is not None:
                jobs.discard(job.index)
                if not jobs:
                    del self._jobs_of_block[block]

    def jobs_reading(self, blocks: Iterable[int]) -> set[int]:
        """The watched jobs that read one of ``blocks``."""
        if not self._jobs_of_block:
            return set()
        return {job for block in blocks for job in self._jobs_of_block.get(block, ())}

    def clear(self) -> None:
        """Watch nothing more."""
        self._jobs_of_block.clear()

    def blocks(self) -> dict[int, set[int]]:
        """The jobs that are watched, per block."""
        return self._jobs_of_block
