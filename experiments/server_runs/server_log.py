"""The lines that vLLM's server prints while it runs: how many tokens it handled, and how many requests it has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.sizes.start_up_log import StartUpLog, parse_start_up_log

LEAST_LINES = 10
"""Fewest lines of a busy server that something is fitted to."""

_LINE = re.compile(
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d).*?(?P<engine>Engine \d+|\d+ Engines Aggregated): "
    r"Avg prompt throughput: (?P<prompt>\d+\.\d+) tokens/s, "
    r"Avg generation throughput: (?P<generation>\d+\.\d+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
    r"(?:.*?KV cache usage: (?P<usage>\d+\.\d+)%)?(?:.*?Prefix cache hit rate: (?P<hits>\d+\.\d+)%)?"
)
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
_RATES = ("prompt", "generation")
_STATES = ("running", "waiting")


class ServerLog(NamedTuple):
    """What the lines say, at even intervals from the first busy one to the last, of all engines together."""

    interval_s: float
    prompt_tokens: np.ndarray
    """Whose first output token came in the interval, without those that were cached."""
    generated_tokens: np.ndarray
    running: np.ndarray
    """At the interval's end."""
    waiting: np.ndarray
    peak_usage: float
    """Of the cache, of 1."""
    hit_rate: float | None
    """In the last line that has it."""
    start_up: StartUpLog | None
    """What the log says of memory; None where it has no such lines."""

    @property
    def limits(self) -> dict[str, int]:
        """What the start-up lines say of the server's limits."""
        if self.start_up is None:
            return {}
        settings, logged = self.start_up.settings, self.start_up.logged
        limits = {name: settings[name] for name in _LIMITS if name in settings}
        if "block_size" in logged:
            limits["block_size"] = int(logged["block_size"])
        elif "capacity_tokens" in logged:
            limits["capacity_tokens"] = int(logged["capacity_tokens"])
        return limits

    @property
    def ends_s(self) -> np.ndarray:
        """When each interval ends, since the end of the first."""
        return self.interval_s * np.arange(len(self.running))


def read_server_log(path: Path) -> ServerLog:
    """The log at ``path``. UserError: it has too few such lines, or lines that are not of one server's run."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    lines = [found for line in text.splitlines() if (found := _LINE.search(line))]
    busy = [line for line in lines if any(float(line[name]) for name in (*_RATES, *_STATES))]
    if len({line["time"] for line in busy}) < LEAST_LINES:
        raise UserError(
            f"{path}: expected at least {LEAST_LINES} lines 'Avg prompt throughput: ...' with their time, of a busy "
            f"server, got {len({line['time'] for line in busy})}: set VLLM_LOG_STATS_INTERVAL=1, or record requests "
            "with vllm bench serve --save-result --save-detailed"
        )
    columns, interval_s = _columns(path, lines)
    hits = [line["hits"] for line in busy if line["hits"] is not None]
    try:
        start_up = parse_start_up_log(text, str(path))
    except UserError:
        start_up = None
    return ServerLog(
        interval_s,
        columns["prompt"] * interval_s,
        columns["generation"] * interval_s,
        columns["running"],
        columns["waiting"],
        max(float(line["usage"] or 0) for line in busy) / 100,
        float(hits[-1]) / 100 if hits else None,
        start_up,
    )


def _columns(path: Path, lines: Sequence[re.Match[str]]) -> tuple[dict[str, np.ndarray], float]:
    """A row per interval from the first busy one to the last, and its length in s; an idle server prints nothing."""
    times_s = _times_s(path, lines)
    places, interval_s = _even(sorted(set(times_s)))
    columns = {name: np.zeros(max(places.values()) + 1) for name in (*_RATES, *_STATES)}
    seen = set()
    for line, time_s in zip(lines, times_s, strict=True):
        if (line["engine"], places[time_s]) in seen:
            raise UserError(
                f"{path}: two lines of {line['engine']} at {line['time']}: give the log of one server alone"
            )
        seen.add((line["engine"], places[time_s]))
        for name, column in columns.items():
            column[places[time_s]] += float(line[name])
    (busy,) = np.nonzero(sum(columns.values()))
    return {name: column[busy[0] : busy[-1] + 1] for name, column in columns.items()}, interval_s


def _times_s(path: Path, lines: Sequence[re.Match[str]]) -> list[float]:
    """Since the first; the year, which vLLM does not print, is one with a 29th of February."""
    try:
        times = [datetime.strptime(f"2024-{line['time']}", "%Y-%m-%d %H:%M:%S") for line in lines]
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    whole_year = timedelta(days=366)
    for before, line, time in zip(times, lines[1:], times[1:], strict=False):
        if (time - before) % whole_year > whole_year / 2:
            raise UserError(
                f"{path}: a line at {line['time']} stands behind a later one: give the log as it was printed"
            )
    return [((time - times[0]) % whole_year).total_seconds() for time in times]


def _even(times_s: Sequence[float]) -> tuple[dict[float, int], float]:
    """The interval of each time, and how long an interval is: times are printed in whole seconds."""
    roughly_s = float(np.quantile(np.diff(times_s), 0.25))
    places = np.concatenate([[0], np.cumsum(np.maximum(1, np.round(np.diff(times_s) / roughly_s)))]).astype(int)
    interval_s = float(np.polyfit(places, times_s, 1)[0])
    return dict(zip(times_s, places.tolist(), strict=True)), interval_s
