"""From the words of a command line to the command that they ask for, or to help.

Help must be fast, so it is answered here, before any import that splits or reads options.
"""

from __future__ import annotations

import os
from difflib import get_close_matches

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.command_line.words import asked_help
from kvtwin.experiments.commands.registry import COMMANDS, module_of
from kvtwin.experiments.errors import UserError

QUIET = "--quiet"
"""Of every command: no progress is shown. No option, since it changes nothing that a command computes or keeps."""

_COMPLETE = "_KVTWIN_COMPLETE"
"""Set by a shell that asks what a word could go on with."""


def run_words(words: list[str]) -> int:
    """Run the command that ``words`` ask for; returns its exit code. UserError: one line about a mistake."""
    if os.environ.get(_COMPLETE):
        return _complete()
    name, rest = _split(words)
    if name is None:
        return _run_none(words)
    module = module_of(name)
    if (group := asked_help(rest)) is not None:
        from kvtwin.experiments.command_line.help_text import print_help

        print_help(name, module.OPTIONS, module.EPILOGUE, group)
        return 0
    from kvtwin.experiments.command_line.application import read_words
    from kvtwin.experiments.display.progress import be_quiet

    be_quiet(QUIET in rest)
    rest = [word for word in rest if word != QUIET]
    exit_code: int = module.run(read_words(name, rest))
    return exit_code


def _run_none(words: list[str]) -> int:
    """What can be asked without a command: help, the version, and what typer adds for shells."""
    if not words or words[0] in ("help", "trace") or asked_help(words) is not None:
        from kvtwin.experiments.command_line.help_text import print_commands

        if words[:1] == ["trace"] and words[1:] not in ([], ["-h"], ["--help"]):
            raise UserError(_unknown_command(words))
        print_commands("trace" if words[:1] == ["trace"] else "")
        return 0
    if words[0] == "--version":
        from kvtwin.experiments.files.version import kvtwin_version

        print(f"kvtwin {kvtwin_version()} (models vLLM {VLLM_VERSION})")
        return 0
    if not words[0].endswith("-completion"):
        raise UserError(_unknown_command(words))
    from kvtwin.experiments.command_line.application import run_typer

    run_typer(None, words)
    return 0


def _complete() -> int:
    """Answer a shell: typer reads the words from the environment itself."""
    from kvtwin.experiments.command_line.application import run_typer

    text = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    name, _ = _split(text.split()[1:])
    run_typer(name, [])
    return 0


def _split(words: list[str]) -> tuple[str | None, list[str]]:
    """The command's name and the words after it; None where they begin with no command."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    return None, words


def _unknown_command(words: list[str]) -> str:
    asked = " ".join(words[:2]) if words[0] == "trace" else words[0]
    near = get_close_matches(asked, COMMANDS, n=1, cutoff=0.5)
    hint = f"; did you mean `kvtwin {near[0]}`?" if near else f"; commands: {', '.join(COMMANDS)}"
    return f"unknown command {asked!r}{hint}"
