"""The typer application: commands and flags come from the registry and from the dataclasses of options.

Of all commands only the one that was asked for is filled in, since the others' options would have to be imported. What
a flag's value means is decided by `read_options`, as for YAML files and for Python: typer only splits the words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from kvtwin.experiments.command_line.standard_input import with_standard_input
from kvtwin.experiments.command_line.words import vllm_words
from kvtwin.experiments.commands.registry import COMMANDS, module_of
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.ending import ending_later
from kvtwin.experiments.options.config_file import with_config_file
from kvtwin.experiments.options.fields import OptionField, fields_of
from kvtwin.experiments.options.kinds import Choice, Several, Switch, Texts
from kvtwin.experiments.options.reading import read_options, refusal, unknown_option


def read_words(name: str, words: list[str]) -> Any:
    """The options of the command ``name`` that ``words`` ask for. UserError: one line about a mistake."""
    options = module_of(name).OPTIONS
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("-") and (reason := refusal(options, flag)):
            raise UserError(f"{flag}: {reason}")
    try:
        return run_typer(name, [*name.split(), *vllm_words(words, options)])
    except typer.TyperException as error:
        flag = getattr(error, "option_name", None)  # of an option that there is not, or that lacks its value
        if flag and type(error).__name__ == "NoSuchOption":
            raise UserError(unknown_option(options, flag, f"kvtwin {name}")) from None
        if flag:
            raise UserError(f"{flag}: needs a value (see kvtwin {name} --help)") from None
        raise UserError(f"{error.format_message().rstrip('.')} (see kvtwin {name} --help)") from None


def run_typer(filled: str | None, words: list[str]) -> Any:
    """What the command ``filled`` makes of ``words``."""
    with ending_later():  # typer would turn an interrupt into an exit code, and return that
        return _click_command(filled)(words, standalone_mode=False, prog_name="kvtwin")


@cache
def _click_command(filled: str | None) -> Callable[..., Any]:
    """What runs the application; kept, since a process may run many commands and making one takes longer than most."""
    return typer.main.get_command(_application(filled))


def _application(filled: str | None) -> typer.Typer:
    """All commands, of which ``filled`` has its options."""
    application = typer.Typer(name="kvtwin", rich_markup_mode=None, no_args_is_help=True)
    trace = typer.Typer(name="trace", rich_markup_mode=None, help="look into a trace, or make one")
    application.add_typer(trace)
    for name, command in COMMANDS.items():
        group, _, rest = name.rpartition(" ")
        function = _function(name, module_of(name)) if name == filled else _nothing
        (trace if group else application).command(name=rest, help=command.summary)(function)
    return application


def _nothing() -> None:
    """A command that was not asked for."""


def _function(name: str, module: ModuleType) -> Callable[..., Any]:
    """What typer calls with the words of each flag; its parameters are the fields of the command's options."""

    def read(**given: Any) -> Any:
        values = {key: value for key, value in given.items() if value not in (None, [])}
        config: str | None = values.pop("config", None)
        values = with_config_file(values, Path(config) if config else None)
        if complete := getattr(module, "complete", None):
            values = complete(values)
        return with_standard_input(read_options(module.OPTIONS, values, f"kvtwin {name}"))

    fields = fields_of(module.OPTIONS)
    parameters = [_parameter(field) for field in fields]
    if any(not field.is_argument for field in fields):
        parameters.append(_keyword("config", str | None, typer.Option("--config", metavar="FILE")))
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    read.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return read


def _parameter(field: OptionField) -> inspect.Parameter:
    if field.is_argument:
        kind: Any = list[str] if isinstance(field.kind, Several | Texts) else str
        return _keyword(field.name, kind | None, typer.Argument(metavar=field.flag))
    if isinstance(field.kind, Switch):
        flags = f"{field.flag}/{field.off_flag}" if field.has_off else field.flag
        return _keyword(field.name, bool | None, typer.Option(flags, *field.aliases))
    completion = _choices(field.kind.choices) if isinstance(field.kind, Choice) else None
    value: Any = list[str] if isinstance(field.kind, Texts) else str
    return _keyword(
        field.name, value | None, typer.Option(field.flag, *field.aliases, autocompletion=completion, help=field.help)
    )


def _keyword(name: str, kind: Any, settings: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, settings])


def _choices(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete
