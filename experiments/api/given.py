"""What a caller gives: options as keyword arguments, and a workload in any of its forms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.config_file import with_config_file
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.kinds import File
from kvtwin.experiments.options.reading import option_key, read_options
from kvtwin.experiments.options.trace import FormatOptions
from kvtwin.workloads.formats.in_memory import workload_of
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.workload import Workload

Options = TypeVar("Options")

WorkloadSource: TypeAlias = str | os.PathLike[str] | Workload | Iterable[RequestRecord]
"""A workload file, ``demo``, an open workload, or requests that a program made."""


def given_options(
    options: type[Options], command: str, given: Mapping[str, Any], *, without: Iterable[str] = (), **fixed: Any
) -> Options:
    """``given`` as the options of ``command``, with what ``config`` names below them and ``fixed`` above them.

    UserError: an option is unknown, not of its kind, or one of ``without``, which print or draw.
    """
    named = {option_key(name): value for name, value in given.items()}
    config = named.pop("config", None)
    read = with_config_file(named, None if config is None else _path(config))
    for name in ("json", *without):
        if read.get(name) is not None:
            raise UserError(f"--{name.replace('_', '-')}: only of the command; the function returns its result")
    return read_options(options, read | fixed, command)


def _path(config: Any) -> Path:
    try:
        return File().read(config)
    except ValueError as error:
        raise UserError(f"--config: {error}") from None


def source_of(source: WorkloadSource, options: Mapping[str, Any]) -> tuple[str, Workload | None]:
    """The name that options have for a workload, and the workload itself if it is open already.

    UserError: it is none, or ``options`` say how to read one that is open. WorkloadError: a request cannot be.
    """
    if isinstance(source, str | os.PathLike):
        return os.fspath(source), None
    for field in fields_of(FormatOptions):
        if options.get(field.name) is not None:
            raise UserError(f"{field.flag}: the workload is open already; give it to open_workload, or give the path")
    if isinstance(source, Workload):
        return str(source.path), source
    if not isinstance(source, Iterable):
        raise UserError(f"expected a workload: a path, demo, a Workload or requests, got {source!r}")
    workload = workload_of(source)
    return str(workload.path), workload
