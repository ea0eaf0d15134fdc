"""Runs one command, and turns errors that the user can fix into one line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.ending import ended_by, ending_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a run that did not succeed, 2 for a mistake in the input.

    A command that a signal ended has 128 and the signal's number, as in a shell.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold anything
    from kvtwin.experiments.command_line.dispatch import run_words
    from kvtwin.workloads.errors import WorkloadError

    try:
        with ending_signals():
            exit_code = run_words(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
        return exit_code
    except (UserError, WorkloadError) as error:
        _complain(f"error: {error}")
        return 2
    except KeyboardInterrupt as interrupt:
        _complain(str(interrupt) or "interrupted")
        return 128 + ended_by(interrupt)
    except BrokenPipeError:
        # The reader went away (`kvtwin ... | head`).
        _drop_output()
        return 1
    except OSError as error:
        where = error.filename or ("standard output" if _is_stuck() else None)
        _complain(f"error: {f'{where}: ' if where else ''}{error.strerror or error}")
        _drop_output()
        return 1
    except MemoryError:
        _complain("error: out of memory")
        return 1


def _complain(text: str) -> None:
    if sys.stderr is not None:
        print(f"kvtwin: {' '.join(text.splitlines())}", file=sys.stderr)


def _is_stuck() -> bool:
    """Whether something that was printed cannot be written."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        return True
    return False


def _drop_output() -> None:
    """Nobody can read standard output: keep the interpreter from complaining of it at exit."""
    with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # there is no output, or it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
