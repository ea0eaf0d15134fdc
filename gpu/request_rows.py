"""What the device knows of the requests that run: their tokens and block tables, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.gpu.transfer import to_device


class RequestRows:
    """Rows of tensors that live on the device and change with every step.

    A request has a row from its admission until it ends or is preempted. The row after the last belongs to nobody: it
    names block 0 only, and sequences that fill up a batch use it.

    Sampled tokens are written into ``tokens`` by the step that samples them. So a step finds all its input there, also
    the output of an earlier step that the host has not seen yet.
    """

    def __init__(self, num_rows: int, max_tokens: int, block_size: int, device: torch.device) -> None:
        self.tokens = torch.zeros((num_rows + 1, max_tokens + 1), dtype=torch.int32, device=device)
        """Token ids by position."""
        self.block_tables = torch.zeros((num_rows + 1, -(-max_tokens // block_size)), dtype=torch.int32, device=device)
        self.seeds = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        """What the sampling of each request starts from."""
        self.dummy_row = num_rows
        self._free_rows = list(range(num_rows))[::-1]
        self._row_of: dict[Request, int] = {}
        self._num_blocks: dict[Request, int] = {}

    def __getitem__(self, request: Request) -> int:
        """The row of a request that runs."""
        return self._row_of[request]

    def update(self, step: Step, seed: int) -> None:
        """Take rows from requests that left, give rows to those that came, and enter what ``step`` has new.

        ``seed`` and a request's id give the seed of its sampling.
        """
        for request in (*step.preempted, *step.finished):
            if request in self._row_of:
                self._free_rows.append(self._row_of.pop(request))
                del self._num_blocks[request]
        tokens, blocks, replaced, seeds = _Entries(), _Entries(), _Entries(), _Entries()
        for admission in step.admitted:
            request = admission.request
            row = self._row_of[request] = self._free_rows.pop()
            tokens.add(row, 0, request.content.token_ids(0, request.num_tokens))
            seeds.add(0, row, [request_seed(seed, request.request_id)])
            self._num_blocks[request] = 0
            self._add_blocks(blocks, request, admission.block_tables[0])
        for request, new_blocks in step.new_blocks:
            self._add_blocks(blocks, request, new_blocks[0])
        for request, _, position, block in step.replaced_blocks:
            replaced.add(self._row_of[request], position, [block])
        tokens.write_to(self.tokens)
        blocks.write_to(self.block_tables)
        replaced.write_to(self.block_tables)
        seeds.write_to(self.seeds[None])

    def _add_blocks(self, blocks: _Entries, request: Request, new_blocks: Sequence[int]) -> None:
        blocks.add(self._row_of[request], self._num_blocks[request], new_blocks)
        self._num_blocks[request] += len(new_blocks)


@dataclass(slots=True)
class _Entries:
    """Values for entries of a matrix on the device, written all at once: one transfer instead of many.

    No entry is there twice.
    """

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def add(self, row: int, first_column: int, values: Sequence[int]) -> None:
        self.rows += [row] * len(values)
        self.columns += range(first_column, first_column + len(values))
        self.values += values

    def write_to(self, matrix: Tensor) -> None:
        if self.rows:
            rows, columns, values = to_device([self.rows, self.columns, self.values], matrix.device)
            matrix[rows, columns] = values.to(matrix.dtype)


def request_seed(seed: int, request_id: str) -> int:
    """A seed for one request's sampling: the same wherever it runs, beside whatever else."""
    digest = blake2b(f"{seed} {request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
