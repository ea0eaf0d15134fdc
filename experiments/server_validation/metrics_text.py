"""What a server's ``/metrics`` said: counters of the prefix cache and of preemptions, and how the cache was set up."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from kvtwin.experiments.errors import UserError

COUNTERS = {
    "prefix_cache_queries": "vllm:prefix_cache_queries",
    "prefix_cache_hits": "vllm:prefix_cache_hits",
    "num_preemptions": "vllm:num_preemptions",
}
"""Keys of a summary, and vLLM's names; in the text they end with ``_total``."""

_INFO = "vllm:cache_config_info"


class Metrics(NamedTuple):
    """One look at ``/metrics``; of several engines the sums."""

    counters: dict[str, int]
    """By the keys of ``COUNTERS``; those that the text has."""
    cache: dict[str, str]
    """Labels of vLLM's ``cache_config_info``, such as ``num_gpu_blocks``; empty without."""


def read_metrics(path: Path) -> Metrics:
    """The metrics in a file of Prometheus text. UserError: it is not such a file, or has none of vLLM's counters."""
    from prometheus_client.parser import text_string_to_metric_families

    last: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}  # of each series, if the file has it over time
    cache: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
            for sample in family.samples:
                last[sample.name.removesuffix("_total"), frozenset(sample.labels.items())] = sample.value
                if sample.name == _INFO:
                    cache = dict(sample.labels)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    sums: dict[str, float] = defaultdict(float)
    for (name, _), value in last.items():
        sums[name] += value
    counters = {key: round(sums[name]) for key, name in COUNTERS.items() if name in sums}
    if not counters:
        raise UserError(f"{path}: has none of {', '.join(COUNTERS.values())}: save what /metrics of the server says")
    return Metrics(counters, cache)


def counted_between(before: Path, after: Path) -> Metrics:
    """What was counted between two looks, and the cache as the second shows it. UserError: a counter went back."""
    first, last = read_metrics(before), read_metrics(after)
    counters = {key: value - first.counters.get(key, 0) for key, value in last.counters.items()}
    if min(counters.values()) < 0:
        key = min(counters, key=lambda name: counters[name])
        raise UserError(f"{after}: {COUNTERS[key]} is lower than before: the server was started again in between")
    return Metrics(counters, last.cache)
