"""Help: the options of a command in panels, as wide as the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.commands.registry import COMMANDS
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.fields import OptionField
from kvtwin.experiments.options.kinds import Choice
from kvtwin.experiments.options.reading import shown_fields

_NAME_WIDTH = 34
"""Columns of flags with what they take; the rest of the line says what they mean."""

_START = """\
Start with:
  kvtwin demo
  kvtwin trace inspect TRACE
  kvtwin replay TRACE --model meta-llama/Llama-3.1-8B --gpu h200

Flags shared with vLLM have its names and defaults. `kvtwin COMMAND --help` lists all flags, `--help=WORD` some of them.
"""

_GENERAL = (
    ("--config FILE", "YAML file of flags, without the dashes; flags on the command line override it"),
    ("--quiet", "show no progress (else a bar on a terminal, or a line every 10 s)"),
    ("--help[=WORD]", "show all options, or the groups or flags with WORD in their names"),
)


def print_commands(group: str = "") -> None:
    """The commands under their headings; with ``group``, those that begin with it."""
    console = _console()
    console.print(f"usage: kvtwin {group + ' ' if group else ''}COMMAND [OPTIONS]\n")
    console.print(f"Simulates the paged KV cache of an LLM server. Makes the decisions of vLLM {VLLM_VERSION}.\n")
    listed = {name: command for name, command in COMMANDS.items() if name.startswith(group)}
    for heading in dict.fromkeys(command.heading for command in listed.values()):
        rows = [(name, command.summary) for name, command in listed.items() if command.heading == heading]
        _print_panel(console, heading, [(name, Text(summary)) for name, summary in rows])
    console.print(f"\n{_START}", end="")


def print_help(command: str, options: type, epilogue: str, asked: str = "") -> None:
    """The help of one command; of ``asked`` only, a word in the name of a group or of flags.

    UserError: nothing has the word in its name.
    """
    fields = shown_fields(options)
    groups = {group: [field for field in fields if field.group == group] for group in _groups(fields)}
    console = _console()
    if asked:
        found = _matching(groups, asked)
        if not found:
            raise UserError(f"--help={asked}: kvtwin {command} has no group or flag with this in its name")
        for group, members in found.items():
            _print_panel(console, group, [_row(field) for field in members])
        return
    arguments = [field for field in fields if field.is_argument]
    summary = COMMANDS[command].summary
    names = " ".join(field.flag if field.is_required else f"[{field.flag}]" for field in arguments)
    console.print(f"usage: kvtwin {command} {names + ' ' if names else ''}[OPTIONS]\n")
    console.print(f"{summary[0].upper()}{summary[1:]}.\nMakes the decisions of vLLM {VLLM_VERSION}.\n")
    for group, members in groups.items():
        _print_panel(console, group, [_row(field) for field in members])
    _print_panel(console, "General", [(flag, Text(text)) for flag, text in _GENERAL])
    console.print(f"\n{epilogue}", end="")


def _groups(fields: Iterable[OptionField]) -> list[str]:
    return list(dict.fromkeys(field.group for field in fields))


def _matching(groups: dict[str, list[OptionField]], asked: str) -> dict[str, list[OptionField]]:
    """Groups with the word in their titles, else the flags that have it in their names."""
    word = asked.lower().removeprefix("--").replace("_", "-")
    whole = {group: members for group, members in groups.items() if word in group.lower()}
    if whole:
        return whole
    some = {group: [field for field in members if word in field.flag] for group, members in groups.items()}
    return {group: members for group, members in some.items() if members}


def _row(field: OptionField) -> tuple[str, Text]:
    """What to write, and what it means; choices that are too long to stand beside the flag come after its meaning."""
    text = field.help
    if isinstance(field.kind, Choice) and len(field.kind.metavar) > _NAME_WIDTH:
        text += f"; one of {', '.join(field.kind.choices)}"
    return _usage(field), Text(f"{text} (default: {field.default_text})" if field.default_text else text)


def _usage(field: OptionField) -> str:
    if field.is_argument:
        return field.flag
    if field.has_off:
        return f"{field.flag}, {field.off_flag}"
    metavar = field.kind.metavar if len(field.kind.metavar) <= _NAME_WIDTH else "NAME"
    return ", ".join((f"{field.flag} {metavar}".rstrip(), *field.aliases))


def _print_panel(console: Console, title: str, rows: list[tuple[str, Text]]) -> None:
    """Names at the left and what they mean at the right; a name that is too long has a line of its own."""
    width = min(_NAME_WIDTH, console.width // 2)
    lines: list[Table | Text] = []
    for name, text in rows:
        if len(name) > width:
            lines.append(Text(name, style="bold"))
            name = ""
        line = Table.grid(padding=(0, 2))
        line.add_column(width=width)
        line.add_column()
        line.add_row(Text(name, style="bold"), text)
        lines.append(line)
    console.print(Panel(Group(*lines), title=title, title_align="left", border_style="dim"))


def _console() -> Console:
    """As wide as the terminal; 100 columns where there is none, and no colours there."""
    width = None if os.environ.get("COLUMNS") or os.isatty(1) else 100
    return Console(width=width, highlight=False, markup=False, soft_wrap=False)
