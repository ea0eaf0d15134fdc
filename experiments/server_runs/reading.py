"""Records of what a server served, of whoever wrote them."""

from __future__ import annotations

from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.aiperf import requests_of_aiperf
from kvtwin.experiments.server_runs.bench_json import requests_of_bench
from kvtwin.experiments.server_runs.guidellm import requests_of_guidellm
from kvtwin.experiments.server_runs.json_files import read_object, read_objects
from kvtwin.experiments.server_runs.request_rows import requests_of_rows
from kvtwin.experiments.server_runs.served import ServedRequest

NAMES = ("bench.json", "requests.jsonl", "profile_export.jsonl", "benchmarks.json")
"""Of a folder's record: of vllm bench serve, of whoever writes a row per request, of AIPerf, of GuideLLM."""


def read_served(path: Path) -> list[ServedRequest]:
    """The requests that succeeded, in order of arrival: of a folder's one record, or of a file, by what is in it.

    UserError: there is no record, or there are several, or it is not what it looks like.
    """
    if path.is_dir():
        paths = [path / name for name in NAMES if (path / name).is_file()]
        if len(paths) != 1:
            found = f"both {paths[0].name} and {paths[1].name}" if paths else f"none of {', '.join(NAMES)}"
            raise UserError(f"{path}: has {found}: save one record, such as vllm bench serve --save-detailed writes")
        path = paths[0]
    if path.suffix == ".jsonl":
        rows = list(read_objects(path))
        if not rows:
            raise UserError(f"{path}: expected a row per request, found none")
        return (requests_of_aiperf if "metrics" in rows[0][1] else requests_of_rows)(path, rows)
    data = read_object(path)
    return (requests_of_guidellm if "benchmarks" in data else requests_of_bench)(path, data)
