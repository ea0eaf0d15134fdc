"""Workloads: who asks what, and when. Readers of public trace formats, a synthetic generator, load shaping.

Importing this package reads no data and imports no heavy package.
"""

from workloads.errors import WorkloadError
from workloads.formats import FORMATS, open_workload
from workloads.native import write_workload
from workloads.request_record import ImageSpan, Predecessor, RequestRecord
from workloads.workload import Workload

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
