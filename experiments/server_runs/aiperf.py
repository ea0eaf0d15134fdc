"""AIPerf's ``profile_export.jsonl``, as requests that a server served.

Field names and units: https://docs.nvidia.com/aiperf/tutorials/metrics-analysis/working-with-profile-export-files
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.json_files import Row, number, whole_number
from kvtwin.experiments.server_runs.served import ServedRequest, since_first_arrival

_UNITS_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}


def requests_of_aiperf(path: Path, rows: list[Row]) -> list[ServedRequest]:
    """The requests of the benchmark that succeeded, in order of arrival; those that warmed the server up are left out.

    A request ends with its last response (``request_latency``). UserError: not such a file, or not of a stream.
    """
    served = []
    for where, row in rows:
        metadata, metrics = row.get("metadata"), row.get("metrics")
        if not isinstance(metadata, dict):
            raise UserError(f"{where}: metadata: expected an object, as AIPerf writes it")
        is_measured = metadata.get("benchmark_phase", "profiling") == "profiling"
        if row.get("error") or metadata.get("was_cancelled") or not is_measured:
            continue
        if not isinstance(metrics, dict):
            raise UserError(f"{where}: metrics: expected an object, as AIPerf writes it")
        start_ns = whole_number(where, metadata.get("request_start_ns"), "request_start_ns")
        if "time_to_first_token" not in metrics:
            raise UserError(f"{where}: time_to_first_token is missing: record with aiperf profile --streaming")
        served.append(
            ServedRequest(
                str(metadata.get("x_request_id") or len(served)),
                _tokens(where, metrics, "input_sequence_length"),
                _tokens(where, metrics, "output_sequence_length"),
                start_ns,
                start_ns + _duration_ns(where, metrics, "time_to_first_token"),
                start_ns + _duration_ns(where, metrics, "request_latency"),
            )
        )
    return since_first_arrival(path, served)


def _metric(where: str, metrics: dict[str, Any], name: str) -> dict[str, Any]:
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        raise UserError(f"{where}: {name}: expected an object with value and unit, got {metric!r}")
    return metric


def _tokens(where: str, metrics: dict[str, Any], name: str) -> int:
    return whole_number(where, _metric(where, metrics, name).get("value"), name)


def _duration_ns(where: str, metrics: dict[str, Any], name: str) -> int:
    metric = _metric(where, metrics, name)
    unit = metric.get("unit")
    if not isinstance(unit, str) or unit not in _UNITS_NS:
        raise UserError(f"{where}: {name}: expected a unit of {', '.join(_UNITS_NS)}, got {unit!r}")
    return round(number(where, metric.get("value"), name) * _UNITS_NS[unit])
