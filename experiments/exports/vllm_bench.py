"""A run as the result JSON of ``vllm bench serve --save-result --save-detailed``, with the keys of the cache beside.

The lists have an entry per request that reached the server, in the order in which they were sent; times are seconds.
There are no texts. ``itls`` needs the events of ``kvtwin replay --events`` and is left out without them.
"""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np

from kvtwin.experiments.exports.token_times import inter_token_latencies_ns
from kvtwin.experiments.records.event_file import has_events
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.latencies import SERVED
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.time_units import SECOND_NS


def export(run: Run, file: IO[str]) -> None:
    """Write the JSON."""
    date = {"date": run.machine["date"]} if "date" in run.machine else {}
    json.dump(date | run.summary | _detailed(run), file, allow_nan=False)
    file.write("\n")


def _detailed(run: Run) -> dict[str, list[Any]]:
    requests = run.requests
    pauses_ns = inter_token_latencies_ns(run) if has_events(run.path) else None
    rows_of: dict[int, list[int]] = {}  # of a request with several samples there are several rows
    for row, record in enumerate(requests["record_index"].tolist()):
        rows_of.setdefault(record, []).append(row)
    detailed: dict[str, list[Any]] = {
        name: [] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    }
    for _, rows in sorted(rows_of.items()):
        is_served = bool(np.isin(requests["finish_reason"][rows], SERVED).all())
        arrival_ns, first_ns = int(requests["arrival_ns"][rows[0]]), int(requests["first_token_ns"][rows].min())
        detailed["input_lens"].append(int(requests["prompt_tokens"][rows[0]]))
        detailed["output_lens"].append(int(requests["output_tokens"][rows].sum()))
        detailed["ttfts"].append((first_ns - arrival_ns) / SECOND_NS if first_ns != NEVER else 0.0)
        if pauses_ns:
            detailed["itls"].append([pause_ns / SECOND_NS for row in rows for pause_ns in pauses_ns[row]])
        detailed["start_times"].append(arrival_ns / SECOND_NS)
        detailed["generated_texts"].append("")
        detailed["errors"].append("" if is_served else str(requests["finish_message"][rows[0]]))
    if pauses_ns is None:
        del detailed["itls"]
    return detailed
