"""The argument parser of all commands: errors in one line, defaults in the help, flags spelled as vLLM allows."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from kvtwin.experiments.errors import UserError

LARGEST = 2**31 - 1
"""The largest whole number that an option takes, unless it says otherwise: vLLM counts in 32 bits."""


_ALIKE = 0.75
"""How much alike an unknown option and a known one must be to suggest it."""


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are UserErrors; ``--a_b`` means ``--a-b``, as in vLLM."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **settings)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """The options in ``args``. UserError: anything that does not belong there."""
        words = [_with_dashes(word) for word in args or ()]
        parsed, unknown = self.parse_known_args(words, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
            shown = [
                name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings
            ]
            near = get_close_matches(flag, shown, n=1, cutoff=_ALIKE)
            hint = f"; nearest: {near[0]}" if near else ""
            raise UserError(f"{flag}: {self.prog} has no such {'option' if flag.startswith('-') else 'argument'}{hint}")
        return parsed

    def hide(self, *names: str) -> None:
        """Leave options out of the help, by the names of their values: the command knows and refuses them."""
        for action in self._actions:
            if action.dest in names:
                action.help = argparse.SUPPRESS

    def error(self, message: str) -> NoReturn:
        """Raise UserError; `--help` has the rest."""
        raise UserError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def format_help(self) -> str:
        """Help with a usage line that does not repeat every option."""
        operands = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        self.usage = " ".join(("%(prog)s", *operands, "[OPTIONS]"))
        return super().format_help()


def _with_dashes(word: str) -> str:
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Adds defaults where there is one to tell."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, max_help_position=34, width=118, **settings)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").removesuffix(" (default: %(default)s)")
        default = action.default
        if default is None or default == argparse.SUPPRESS or (action.nargs == 0 and not default):
            return text
        shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
        return f"{text} (default: {shown})".replace("%", "%%")


@dataclass(frozen=True)
class Whole:
    """An option's type: a whole number from ``least`` to ``most``."""

    least: int = 1
    most: int = LARGEST
    or_none: bool = False
    """Whether ``None`` may be given as well, which vLLM spells like this."""

    def __call__(self, text: str) -> int | None:
        if self.or_none and text == "None":
            return None
        try:
            value = int(text)
        except ValueError:
            value = self.least - 1
        if not self.least <= value <= self.most:
            raise argparse.ArgumentTypeError(
                f"expected {'None, or ' if self.or_none else ''}a whole number from {self.least} to {self.most}, "
                f"got {_short(text)}"
            )
        return value


@dataclass(frozen=True)
class Number:
    """An option's type: a finite number from ``least`` to ``most``."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is too small."""
    infinite: bool = False
    """Whether infinity may be given as well."""

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        fits = math.isfinite(value) and self.least <= value <= self.most and not (self.above and value == self.least)
        if not fits and not (self.infinite and value == math.inf):
            raise argparse.ArgumentTypeError(f"expected {self._wanted()}, got {_short(text)}")
        return value

    def _wanted(self) -> str:
        wanted = f"a number {'above' if self.above else 'of at least'} {self.least:g}"
        if self.most < math.inf:
            wanted += f" and at most {self.most:g}"
        return wanted + (", or inf" if self.infinite else "")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
