"""Workloads: who asks what, and when. Readers of public trace formats, a synthetic generator, load shaping.

Importing this package reads no data and imports no module of its own until one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtwin.workloads.errors import WorkloadError as WorkloadError
    from kvtwin.workloads.formats.native import write_workload as write_workload
    from kvtwin.workloads.formats.registry import FORMATS as FORMATS
    from kvtwin.workloads.formats.registry import open_workload as open_workload
    from kvtwin.workloads.request_record import ImageSpan as ImageSpan
    from kvtwin.workloads.request_record import Predecessor as Predecessor
    from kvtwin.workloads.request_record import RequestRecord as RequestRecord
    from kvtwin.workloads.workload import Workload as Workload

_HOMES = {
    "FORMATS": "formats.registry",
    "ImageSpan": "request_record",
    "Predecessor": "request_record",
    "RequestRecord": "request_record",
    "Workload": "workload",
    "WorkloadError": "errors",
    "open_workload": "formats.registry",
    "write_workload": "formats.native",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
