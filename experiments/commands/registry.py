"""The commands by name. Their modules are imported when they are asked for, so that the list of them comes at once.

A module has ``OPTIONS``, the dataclass of its options; ``EPILOGUE``, what its help ends with; and ``run(options)``,
which returns the exit code. One that has more to read than flags has ``complete(values)`` too: from the values that
were given to those that count. What is heavy is imported by ``run``: help must not wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True)
class Command:
    """A command: its module, what it does in one line, and under which heading it is listed."""

    module: str
    summary: str
    heading: str


_SIMULATE, _LOOK, _DEVICE, _KNOWN = "Simulate", "Look at results", "On a device", "What is known"

COMMANDS = {
    "replay": Command("replay", "simulate a server that is sent a trace; print what came of it", _SIMULATE),
    "explain": Command("explain", "what happened to one request of a replay, and why", _SIMULATE),
    "size": Command("size", "from gigabytes to blocks, without a trace", _SIMULATE),
    "curve": Command("curve", "the hit rate at every cache size, in one pass", _SIMULATE),
    "sweep": Command("sweep", "replay a trace under many settings; compare", _SIMULATE),
    "limit": Command("limit", "the highest rate that holds: no preemption, hit rate, latencies", _SIMULATE),
    "isolation": Command("isolation", "what response times tell other tenants; what cache salts cost", _SIMULATE),
    "demo": Command("demo", "replay a bundled workload on a small pool", _SIMULATE),
    "compare": Command("compare", "runs side by side, differences first", _LOOK),
    "plot": Command("plot", "pictures of a run or a sweep", _LOOK),
    "report": Command("report", "one HTML page about a run or a sweep, with the blocks as a film", _LOOK),
    "export": Command("export", "a run in the format of another tool: Perfetto, Prometheus, vllm bench", _LOOK),
    "validate": Command("validate", "serve a workload for real, simulate the same, compare and check", _DEVICE),
    "calibrate": Command("calibrate", "measure how long steps take on this machine", _DEVICE),
    "trace inspect": Command("trace_inspect", "what is in a trace file, and what it lacks", _KNOWN),
    "trace generate": Command("trace_generate", "write a synthetic workload, seeded", _KNOWN),
    "models": Command("models", "models known by name", _KNOWN),
    "gpus": Command("gpus", "GPUs known by name", _KNOWN),
}


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"kvtwin.experiments.commands.{COMMANDS[name].module}")
