"""The demo workload: a small chat service whose few minutes of traffic overflow a small block pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.distributions import LogNormal, Uniform
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.generator import SyntheticWorkload, SystemPrompts
from kvtwin.workloads.request_record import RequestRecord

DEMO_WORKLOAD = SyntheticWorkload(
    num_requests=300,
    conversations_per_s=12.0,
    system_prompts=SystemPrompts(number=4, length_tokens=Uniform(200, 600), zipf_exponent=1.0),
    turns=Uniform(1, 4),
    user_tokens=LogNormal(median=80, sigma=0.8, low=8, high=800),
    output_tokens=LogNormal(median=220, sigma=0.6, low=16, high=800),
    think_time_ms=LogNormal(median=2_000, sigma=0.6, low=500, high=20_000),
)
"""300 requests of some 120 conversations of one to four turns.

Meant for a pool of 1,500 to 2,500 blocks of 16 tokens: shared system prompts and earlier turns hit, blocks
are evicted between turns, and at the busiest times requests are preempted.
"""


@dataclass(frozen=True)
class DemoReader(Reader):
    """Reads the demo workload, from no file."""

    name: ClassVar[str] = "bundled"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset()

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        return False

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        yield from DEMO_WORKLOAD
