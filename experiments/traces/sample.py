"""Some sessions of a trace, whole."""

from __future__ import annotations

from kvtwin.experiments.files.new import check_new
from kvtwin.experiments.options.trace_tools import SampleOptions
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.experiments.traces.new_file import write_new
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.formats.native import write_workload
from kvtwin.workloads.sessions import PlayedSessions


def sample(options: SampleOptions) -> int:
    """Write the sessions that the seed draws. UserError: the file is there already, or cannot be written."""
    check_new(options.out, "")
    workload = open_trace(options.trace, options)
    warn_of(workload)
    played = PlayedSessions(workload, turns=workload.turns, num_sessions=options.num_sessions, seed=options.seed)
    words = f"kvtwin trace sample: {number_of(played.num_sessions, 'session')} of {options.trace}, seed {options.seed}"
    return write_new(options.out, played, lambda records: write_workload(options.out, records, words))
