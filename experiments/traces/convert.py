"""A trace in another format."""

from __future__ import annotations

import sys

from kvtwin.experiments.files.new import check_new
from kvtwin.experiments.options.trace_tools import ConvertOptions
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.experiments.traces.new_file import write_new
from kvtwin.workloads.formats.mooncake_writer import write_mooncake
from kvtwin.workloads.formats.native import write_workload


def convert(options: ConvertOptions) -> int:
    """Write the trace. UserError: the file is there already, or cannot be written."""
    check_new(options.out, "")
    workload = open_trace(options.trace, options)
    warn_of(workload)
    if options.to == "kvtwin":
        words = f"kvtwin trace convert: {options.trace} ({workload.format_name})"
        return write_new(options.out, workload, lambda records: write_workload(options.out, records, words))
    lost = set[str]()
    exit_code = write_new(options.out, workload, lambda records: write_mooncake(options.out, records, lost))
    for what in sorted(lost):
        print(f"kvtwin: warning: Mooncake's format does not hold {what}", file=sys.stderr)
    return exit_code
