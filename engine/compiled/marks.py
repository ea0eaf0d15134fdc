"""Functions that exist twice from one source: interpreted, as they stand, and as machine code.

They are written over arrays of ints and floats, call only each other, never raise and allocate nothing, so that
:mod:`kvtwin.engine.compiled.machine_code` can compile them. Who calls them from Python gets the interpreted form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILABLE: list[Callable[..., Any]] = []
"""Every such function that was imported."""


def compilable(function: Function) -> Function:
    """Mark ``function``, and leave it as it is."""
    COMPILABLE.append(function)
    return function
