"""The ``kvtwin`` command: finds the subcommand's module, parses its options, turns user errors into one line.

Subcommand modules are imported when they are asked for, so that ``kvtwin --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from kvtwin.engine.config import VLLM_VERSION
from kvtwin.experiments.errors import UserError


@dataclass(frozen=True)
class Command:
    """A subcommand: the module that has its ``add_arguments(parser)`` and ``run(args) -> exit code``.

    A module may have ``parse_command_line(parser, words) -> args`` too, if there is more to read than the command line.
    """

    module: str
    summary: str


COMMANDS = {
    "replay": Command(
        "kvtwin.experiments.commands.replay", "simulate a server that is sent a trace; print what came of it"
    ),
    "explain": Command("kvtwin.experiments.commands.explain", "what happened to one request of a replay, and why"),
    "size": Command("kvtwin.experiments.commands.size", "from gigabytes to blocks, without a trace"),
    "trace inspect": Command("kvtwin.experiments.commands.trace_inspect", "what is in a trace file, and what it lacks"),
    "trace generate": Command("kvtwin.experiments.commands.trace_generate", "write a synthetic workload, seeded"),
    "sweep": Command("kvtwin.experiments.commands.sweep", "replay a trace under many settings; compare"),
    "curve": Command("kvtwin.experiments.commands.curve", "the hit rate at every cache size, in one pass"),
    "limit": Command(
        "kvtwin.experiments.commands.limit", "the highest rate that holds: no preemption, hit rate, latencies"
    ),
    "calibrate": Command("kvtwin.experiments.commands.calibrate", "measure how long steps take on this machine"),
    "validate": Command(
        "kvtwin.experiments.commands.validate", "serve a workload for real, simulate the same, compare and check"
    ),
    "compare": Command("kvtwin.experiments.commands.compare", "runs side by side, differences first"),
    "plot": Command("kvtwin.experiments.commands.plot", "pictures of a run or a sweep"),
    "isolation": Command(
        "kvtwin.experiments.commands.isolation", "what response times tell other tenants; what cache salts cost"
    ),
    "report": Command(
        "kvtwin.experiments.commands.report", "one HTML page about a run or a sweep, with the blocks as a film"
    ),
    "export": Command(
        "kvtwin.experiments.commands.export", "a run in the format of another tool: Perfetto, Prometheus, vllm bench"
    ),
    "demo": Command("kvtwin.experiments.commands.demo", "replay a bundled workload on a small pool"),
    "models": Command("kvtwin.experiments.commands.models", "models known by name"),
    "gpus": Command("kvtwin.experiments.commands.gpus", "GPUs known by name"),
}

EPILOGUE = """\
Start with:
  kvtwin demo
  kvtwin trace inspect TRACE
  kvtwin replay TRACE --model meta-llama/Llama-3.1-8B --gpu h200

Flags that vLLM has carry vLLM's names and defaults; `kvtwin COMMAND --help` lists them.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a run that did not succeed, 2 for a mistake in the input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold anything
    try:
        exit_code = _run(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return exit_code
    except UserError as error:
        _complain(f"error: {error}")
        return 2
    except KeyboardInterrupt as interrupt:
        _complain(str(interrupt) or "interrupted")
        return 130
    except BrokenPipeError:
        # The reader went away (`kvtwin ... | head`).
        _drop_output()
        return 1
    except OSError as error:
        _complain(f"error: {error}")
        _drop_output()
        return 1
    except MemoryError:
        _complain("error: out of memory")
        return 1


def _run(words: list[str]) -> int:
    name, rest = _split_command(words)
    if name is None:
        return 0
    module = import_module(COMMANDS[name].module)
    # Not at the top: they import numpy, and the list of commands must come at once.
    from kvtwin.experiments.options.parser import CommandParser
    from kvtwin.workloads.errors import WorkloadError

    summary = COMMANDS[name].summary
    parser = CommandParser(
        prog=f"kvtwin {name}",
        description=f"{summary[0].upper()}{summary[1:]}. Decides as vLLM {VLLM_VERSION} does.",
        epilog=module.EPILOGUE,
    )
    module.add_arguments(parser)
    try:
        parse = getattr(module, "parse_command_line", CommandParser.parse_args)
        exit_code: int = module.run(parse(parser, rest))
    except WorkloadError as error:
        raise UserError(str(error)) from None
    except SystemExit as end:  # --help
        return int(end.code or 0)
    return exit_code


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(f"kvtwin: {' '.join(text.splitlines())}", file=sys.stderr)


def _drop_output() -> None:
    """Nobody can read standard output: keep the interpreter from complaining of it at exit."""
    with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # there is no output, or it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split_command(words: list[str]) -> tuple[str | None, list[str]]:
    """The command's name and its arguments; None when help or the version was printed instead."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help_text())
        return None, []
    if words[0] == "--version":
        from kvtwin.experiments.files.version import kvtwin_version

        print(f"kvtwin {kvtwin_version()} (models vLLM {VLLM_VERSION})")
        return None, []
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    if any(name.startswith(f"{words[0]} ") for name in COMMANDS) and words[1:2] in ([], ["-h"], ["--help"]):
        print(_help_text(words[0]))
        return None, []
    asked = " ".join(words[:2]) if words[0] == "trace" else words[0]
    near = get_close_matches(asked, COMMANDS, n=1, cutoff=0.5)
    hint = f"; did you mean `kvtwin {near[0]}`?" if near else f"; commands: {', '.join(COMMANDS)}"
    raise UserError(f"unknown command {asked!r}{hint}")


def _help_text(group: str = "") -> str:
    lines = [
        f"usage: kvtwin {group + ' ' if group else ''}COMMAND [OPTIONS]",
        "",
        f"Simulates an LLM server's paged KV cache; decides as vLLM {VLLM_VERSION} does.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<16} {command.summary}" for name, command in COMMANDS.items() if name.startswith(group)]
    return "\n".join([*lines, "", EPILOGUE])


if __name__ == "__main__":
    sys.exit(main())
