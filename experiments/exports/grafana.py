"""A Grafana dashboard for a run's metrics: it asks Prometheus for vLLM's names, so it shows a real server as well.

Its time range is the run's, as `kvtwin.experiments.exports.prometheus` writes it. Format: Grafana's dashboard JSON
model, schema version 39; the data source is chosen in Grafana.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from kvtwin.experiments.exports.sampled import Moments
from kvtwin.experiments.records.reader import Run

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_SHARED_CROSSHAIR = 1
_SAMPLES_OF_A_RATE = 4
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
"""Of a panel, in the units of a page, which is 24 wide."""


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expression and legend. ``WINDOW`` stands for the stretch of time of a rate."""


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({share}, sum by (le, engine) (rate(vllm:{metric}_bucket[WINDOW])))", f"p{percent}")
        for share, percent in ((0.5, 50), (0.9, 90), (0.99, 99))
    )


_PANELS = (
    _Panel(
        "Requests",
        "short",
        (("vllm:num_requests_running", "running"), ("vllm:num_requests_waiting", "waiting")),
    ),
    _Panel("KV cache in use", "percentunit", (("vllm:kv_cache_usage_perc", "engine {{engine}}"),)),
    _Panel(
        "Prefix cache hit rate",
        "percentunit",
        (
            (
                "rate(vllm:prefix_cache_hits_total[WINDOW]) / rate(vllm:prefix_cache_queries_total[WINDOW])",
                "engine {{engine}}",
            ),
        ),
    ),
    _Panel("Preemptions per second", "ops", (("rate(vllm:num_preemptions_total[WINDOW])", "engine {{engine}}"),)),
    _Panel(
        "Tokens per second",
        "short",
        (
            ("rate(vllm:prompt_tokens_total[WINDOW])", "prompt"),
            ("rate(vllm:generation_tokens_total[WINDOW])", "output"),
        ),
    ),
    _Panel(
        "Requests served per second", "reqps", (("rate(vllm:request_success_total[WINDOW])", "{{finished_reason}}"),)
    ),
    _Panel("Time to first token", "s", _quantiles("time_to_first_token_seconds")),
    _Panel("Inter-token latency", "s", _quantiles("inter_token_latency_seconds")),
    _Panel("End-to-end latency", "s", _quantiles("e2e_request_latency_seconds")),
    _Panel("Time in the queue", "s", _quantiles("request_queue_time_seconds")),
    _Panel("Tokens per step", "short", _quantiles("iteration_tokens_total")),
    _Panel("Prompt tokens computed per request", "short", _quantiles("request_prefill_kv_computed_tokens")),
)


def export(run: Run, file: IO[str]) -> None:
    """Write the JSON."""
    moments = Moments.of(run)
    timestamps = moments.timestamps
    window = f"{_SAMPLES_OF_A_RATE * moments.interval_s}s"
    dashboard = {
        "title": f"kvtwin: {run.title}",
        "schemaVersion": 39,
        "editable": True,
        "tags": ["kvtwin", "vllm"],
        "timezone": "utc",
        "graphTooltip": _SHARED_CROSSHAIR,
        "time": {"from": _iso(timestamps[0]), "to": _iso(timestamps[-1])},
        "annotations": {"list": []},
        "templating": {
            "list": [{"name": "source", "label": "data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, panel, window) for number, panel in enumerate(_PANELS)],
    }
    json.dump(dashboard, file, indent=2)
    file.write("\n")


def _panel(number: int, panel: _Panel, window: str) -> dict[str, Any]:
    line, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {
                "refId": "ABCDEF"[index],
                "datasource": _SOURCE,
                "expr": expression.replace("WINDOW", window),
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _iso(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
