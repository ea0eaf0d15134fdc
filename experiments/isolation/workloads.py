"""The workloads of ``kvtwin isolation``: an attack on a prefix cache, and a trace distributed over tenants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from kvtwin.experiments.isolation.spec import Attack
from kvtwin.workloads.arrivals import arrivals_ns
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

PROBE = "probe-"
"""What the ids of the attacker's requests begin with."""

_VOCABULARY = 32_000
_SECRETS, _BACKGROUND = range(2)
"""Streams of random numbers."""


def attack_records(
    attack: Attack, requests_per_s: float, *, guesses_right: bool, with_salts: bool
) -> list[RequestRecord]:
    """Everything that victim, attacker and others send, in order of arrival.

    Right and wrong guesses differ in the tokens of the secret alone: all times and lengths are equal. With salts each
    of the three tenants has one of its own.
    """
    records = [*_victim_and_attacker(attack, guesses_right), *_background(attack, requests_per_s)]
    records.sort(key=lambda record: record.arrival_ns)
    if not with_salts:
        return records
    return [replace(record, cache_salt=record.request_id.partition("-")[0]) for record in records]


def _victim_and_attacker(attack: Attack, guesses_right: bool) -> Iterator[RequestRecord]:
    rng = np.random.default_rng([attack.seed, _SECRETS])
    template = _tokens(rng, attack.template_tokens)
    for index in range(attack.probes):
        secret, other = _tokens(rng, attack.secret_tokens), _tokens(rng, attack.secret_tokens)
        sent_ns = round(index * attack.interval_s * SECOND_NS)
        for name, tokens, delay_s in (
            ("victim-", secret, 0.0),
            (PROBE, secret if guesses_right else other, attack.delay_s),
        ):
            prompt = template + tokens + _tokens(rng, attack.question_tokens)
            yield RequestRecord(
                request_id=f"{name}{index}",
                arrival_ns=sent_ns + round(delay_s * SECOND_NS),
                prompt_tokens=len(prompt),
                output_tokens=attack.output_tokens,
                token_ids=prompt,
            )


def _background(attack: Attack, requests_per_s: float) -> Iterator[RequestRecord]:
    """Requests of others, which share nothing, for as long as the attack lasts."""
    if not requests_per_s:
        return
    rng = np.random.default_rng([attack.seed, _BACKGROUND])
    end_ns = attack.probes * attack.interval_s * SECOND_NS
    for index, arrival_ns in enumerate(arrivals_ns(rng, requests_per_s, 1.0)):
        if arrival_ns > end_ns:
            return
        yield RequestRecord(
            request_id=f"other-{index}",
            arrival_ns=arrival_ns,
            prompt_tokens=attack.background_prompt_tokens,
            output_tokens=attack.background_output_tokens,
            token_ids=_tokens(rng, attack.background_prompt_tokens),
        )


def tenant_records(records: Iterable[RequestRecord], num_tenants: int) -> Iterator[RequestRecord]:
    """``records`` distributed over tenants, conversation by conversation; each tenant has a cache salt."""
    tenant_of: dict[str, int] = {}
    for record in records:
        conversation = record.session or record.request_id
        tenant = tenant_of.setdefault(conversation, len(tenant_of) % num_tenants)
        yield replace(record, cache_salt=f"tenant-{tenant}")


@dataclass(frozen=True)
class _InMemory(Reader):
    """Reads records that are there already."""

    name: ClassVar[str] = "generated"
    records: tuple[RequestRecord, ...]

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset()

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        yield from self.records


def workload_of(records: Iterable[RequestRecord], like: Workload | None = None) -> Workload:
    """A workload of ``records``, sorted by arrival; ``like`` is the one that they were made of, if any."""
    if like is None:
        return Workload.of(Path("isolation"), _InMemory(tuple(records)))
    return replace(like, _held=tuple(records))


def _tokens(rng: np.random.Generator, number: int) -> list[int]:
    tokens: list[int] = rng.integers(_VOCABULARY, size=number).tolist()
    return tokens
