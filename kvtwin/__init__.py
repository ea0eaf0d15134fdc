"""kvtwin: a simulator of an LLM server's paged KV cache that decides exactly as vLLM does.

>>> import kvtwin as kv
>>> run = kv.replay("demo", gpu="rtx-4090", max_model_len=8192, num_prompts=20)
>>> run.summary["completed"]
20

`size`, `replay`, `curve`, `sweep`, `limit`, `compare`, `validate` and `inspect` return what the commands of these names
print (docs/python.md). `open_workload`, `write_workload` and `load_run` read and write. `Scheduler`, `EngineConfig`,
`BlockPool`, `Request` and `TokenContent` are the engine's own, for those who drive it themselves (`kvtwin.engine` shows
how). What a user can put right is raised as `UserError` or `WorkloadError`.

The rooms lie at the top of the repository and are linked here, so that a machine has one name of ours: `kvtwin.engine`,
`kvtwin.workloads`, `kvtwin.sim`, `kvtwin.gpu`, `kvtwin.experiments`. Importing this package imports none of them until
one of its names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtwin.engine.block_keys import TokenContent as TokenContent
    from kvtwin.engine.block_pool import BlockPool as BlockPool
    from kvtwin.engine.config import EngineConfig as EngineConfig
    from kvtwin.engine.request import Request as Request
    from kvtwin.engine.scheduler import Scheduler as Scheduler
    from kvtwin.experiments.api.compare import Comparison as Comparison
    from kvtwin.experiments.api.compare import compare as compare
    from kvtwin.experiments.api.curve import Curve as Curve
    from kvtwin.experiments.api.curve import curve as curve
    from kvtwin.experiments.api.limit import limit as limit
    from kvtwin.experiments.api.replay import replay as replay
    from kvtwin.experiments.api.run import Run as Run
    from kvtwin.experiments.api.run import load_run as load_run
    from kvtwin.experiments.api.size import size as size
    from kvtwin.experiments.api.sweep import sweep as sweep
    from kvtwin.experiments.api.validate import validate as validate
    from kvtwin.experiments.api.workload import inspect as inspect
    from kvtwin.experiments.api.workload import open_workload as open_workload
    from kvtwin.experiments.errors import UserError as UserError
    from kvtwin.workloads.errors import WorkloadError as WorkloadError
    from kvtwin.workloads.formats.native import write_workload as write_workload
    from kvtwin.workloads.request_record import RequestRecord as RequestRecord
    from kvtwin.workloads.workload import Workload as Workload

_HOMES = {
    "BlockPool": "engine.block_pool",
    "Comparison": "experiments.api.compare",
    "Curve": "experiments.api.curve",
    "EngineConfig": "engine.config",
    "Request": "engine.request",
    "RequestRecord": "workloads.request_record",
    "Run": "experiments.api.run",
    "Scheduler": "engine.scheduler",
    "TokenContent": "engine.block_keys",
    "UserError": "experiments.errors",
    "Workload": "workloads.workload",
    "WorkloadError": "workloads.errors",
    "compare": "experiments.api.compare",
    "curve": "experiments.api.curve",
    "inspect": "experiments.api.workload",
    "limit": "experiments.api.limit",
    "load_run": "experiments.api.run",
    "open_workload": "experiments.api.workload",
    "replay": "experiments.api.replay",
    "size": "experiments.api.size",
    "sweep": "experiments.api.sweep",
    "validate": "experiments.api.validate",
    "write_workload": "workloads.formats.native",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
