"""The typer application: commands and flags come from the registry and from the dataclasses of options.

Of all commands only the one that was asked for is filled in, since the others' options would have to be imported. What
a flag's value means is decided by `read_options`, as for YAML files and for Python: typer only splits the words.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from kvtwin.engine.config import VLLM_VERSION
from kvtwin.experiments.command_line.words import asked_help, vllm_words
from kvtwin.experiments.commands.registry import COMMANDS
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.config_file import with_config_file
from kvtwin.experiments.options.fields import OptionField, fields_of
from kvtwin.experiments.options.kinds import Choice, Switch
from kvtwin.experiments.options.reading import read_options, refusal, unknown_option

_COMPLETE = "_KVTWIN_COMPLETE"
"""Set by a shell that asks what a word could go on with."""


def run_words(words: list[str]) -> int:
    """Run the command that ``words`` ask for; returns its exit code. UserError: one line about a mistake."""
    if os.environ.get(_COMPLETE):
        return _complete()
    name, rest = _split(words)
    if not words or (name is None and (words[0] in ("help", "trace") or asked_help(words) is not None)):
        from kvtwin.experiments.command_line.help_text import print_commands

        print_commands(words[0] if words[:1] == ["trace"] else "")
        return 0
    if words[0] == "--version":
        from kvtwin.experiments.files.version import kvtwin_version

        print(f"kvtwin {kvtwin_version()} (models vLLM {VLLM_VERSION})")
        return 0
    if name is None and not words[0].startswith("-"):
        raise UserError(_unknown_command(words))
    if name is None:
        return _run_typer(_application(None), words)
    module = _module_of(name)
    if (group := asked_help(rest)) is not None:
        from kvtwin.experiments.command_line.help_text import print_help

        print_help(name, module.OPTIONS, module.EPILOGUE, group)
        return 0
    for word in rest:
        flag = word.partition("=")[0]
        dashed = flag.replace("_", "-")
        if flag.startswith("-") and (reason := refusal(module.OPTIONS, dashed)):
            raise UserError(f"{dashed}: {reason}")
    words = [*name.split(), *vllm_words(rest, module.OPTIONS)]
    return _run_typer(_application(name), words, module.OPTIONS, f"kvtwin {name}")


def _run_typer(application: typer.Typer, words: list[str], options: type | None = None, command: str = "kvtwin") -> int:
    try:
        exit_code = application(words, standalone_mode=False, prog_name="kvtwin")
    except typer.TyperException as error:
        flag = getattr(error, "option_name", None)
        if options is not None and flag and type(error).__name__ == "NoSuchOption":
            raise UserError(unknown_option(options, flag, command)) from None
        raise UserError(f"{error.format_message().rstrip('.')} (see {command} --help)") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return int(exit_code or 0)


def _application(filled: str | None) -> typer.Typer:
    """All commands, of which ``filled`` has its options."""
    application = typer.Typer(name="kvtwin", rich_markup_mode=None, no_args_is_help=True)
    trace = typer.Typer(name="trace", rich_markup_mode=None, help="look into a trace, or make one")
    application.add_typer(trace)
    for name, command in COMMANDS.items():
        group, _, rest = name.rpartition(" ")
        function = _function(name, _module_of(name)) if name == filled else _nothing
        (trace if group else application).command(name=rest, help=command.summary)(function)
    return application


def _nothing() -> None:
    """A command that was not asked for."""


def _module_of(name: str) -> ModuleType:
    return import_module(f"kvtwin.experiments.commands.{COMMANDS[name].module}")


def _function(name: str, module: ModuleType) -> Callable[..., int]:
    """What typer calls with the words of each flag; its parameters are the fields of the command's options."""

    def run(**given: Any) -> int:
        values = {key: value for key, value in given.items() if value not in (None, [])}
        config: str | None = values.pop("config", None)
        values = with_config_file(values, Path(config) if config else None)
        if complete := getattr(module, "complete", None):
            values = complete(values)
        exit_code: int = module.run(read_options(module.OPTIONS, values, f"kvtwin {name}"))
        return exit_code

    fields = fields_of(module.OPTIONS)
    parameters = [_parameter(field) for field in fields]
    if any(not field.is_argument for field in fields) and "config" not in (field.name for field in fields):
        parameters.append(_keyword("config", str | None, typer.Option("--config", metavar="FILE")))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(field: OptionField) -> inspect.Parameter:
    if field.is_argument:
        many = field.name == "runs"
        kind: Any = list[str] if many else str
        return _keyword(field.name, kind | None, typer.Argument(metavar=field.flag))
    if isinstance(field.kind, Switch):
        flags = f"{field.flag}/{field.off_flag}" if field.has_off else field.flag
        return _keyword(field.name, bool | None, typer.Option(flags, *field.aliases))
    completion = _choices(field.kind.choices) if isinstance(field.kind, Choice) else None
    return _keyword(
        field.name, str | None, typer.Option(field.flag, *field.aliases, autocompletion=completion, help=field.help)
    )


def _keyword(name: str, kind: Any, settings: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, settings])


def _choices(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _complete() -> int:
    """Answer a shell: typer reads the words from the environment itself."""
    text = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    name, _ = _split(text.split()[1:])
    return _run_typer(_application(name), [])


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
