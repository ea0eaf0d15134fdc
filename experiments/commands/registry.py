"""The commands by name. Their modules are imported only when needed, so that the list of commands prints without delay.

A module has ``OPTIONS``, the dataclass of its options; ``EPILOGUE``, what its help ends with; and ``run(options)``,
which returns the exit code. A module that reads more than flags has ``complete(values)`` too: it maps
the given values to the effective ones. Heavy imports belong in ``run``: help must not wait for them.
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


_SIMULATE, _LOOK, _DEVICE, _KNOWN = "Simulate", "Look at results", "On a device", "Traces and catalogue"

COMMANDS = {
    "replay": Command("replay", "simulate a server on a trace; print latencies and what the KV cache did", _SIMULATE),
    "explain": Command("explain", "show what happened to one request, step by step, and why", _SIMULATE),
    "size": Command("size", "compute how many KV cache blocks a model gets on a GPU", _SIMULATE),
    "curve": Command("curve", "compute the hit rate at every cache size, in one pass", _SIMULATE),
    "sweep": Command("sweep", "replay a trace under many settings and compare them", _SIMULATE),
    "limit": Command(
        "limit", "find the highest rate without preemptions, within limits on hit rate and latencies", _SIMULATE
    ),
    "isolation": Command(
        "isolation", "measure what response times leak to other tenants, and what cache salts cost", _SIMULATE
    ),
    "demo": Command("demo", "replay the bundled workload in a small pool", _SIMULATE),
    "compare": Command("compare", "compare runs side by side, differences first", _LOOK),
    "plot": Command("plot", "draw pictures of a run or a sweep", _LOOK),
    "report": Command("report", "write one HTML page about a run or a sweep, with a film of the blocks", _LOOK),
    "export": Command("export", "write a run in another tool's format: Perfetto, Prometheus, vllm bench", _LOOK),
    "validate": Command("validate", "serve a workload for real, simulate it too, compare and check", _DEVICE),
    "calibrate": Command("calibrate", "measure step times on this machine", _DEVICE),
    "trace inspect": Command("trace_inspect", "show what is in a trace file, and what is missing", _KNOWN),
    "trace convert": Command("trace_convert", "write a trace in another format", _KNOWN),
    "trace sample": Command("trace_sample", "keep some sessions of a trace, drawn at random", _KNOWN),
    "trace merge": Command("trace_merge", "bring traces together in one, in order of arrival", _KNOWN),
    "trace generate": Command("trace_generate", "write a synthetic workload from a seed", _KNOWN),
    "models": Command("models", "list the models known by name", _KNOWN),
    "gpus": Command("gpus", "list the GPUs known by name", _KNOWN),
}


def module_of(name: str) -> ModuleType:
    """The module of a command."""
    return import_module(f"kvtwin.experiments.commands.{COMMANDS[name].module}")
