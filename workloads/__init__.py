"""Workloads: who asks what, and when. Readers of public trace formats, a synthetic generator, load shaping.

Importing this package reads no data and imports no heavy package.
"""

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.native import write_workload
from kvtwin.workloads.formats.registry import FORMATS, open_workload
from kvtwin.workloads.request_record import ImageSpan, Predecessor, RequestRecord
from kvtwin.workloads.workload import Workload

__all__ = [
    "FORMATS",
    "ImageSpan",
    "Predecessor",
    "RequestRecord",
    "Workload",
    "WorkloadError",
    "open_workload",
    "write_workload",
]
