"""Results that ``out`` could not keep: they are returned all the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

from kvtwin.experiments.errors import UserError

Result = TypeVar("Result")


def returned_in_any_case(compute: Callable[[Callable[[Result], object]], Result]) -> Result:
    """What ``compute`` returns; where it cannot be kept, what it showed before, with a RuntimeWarning that says why.

    ``compute`` gets a function to which it gives the result before it writes anything. UserError: there is no result.
    """
    shown: list[Result] = []
    try:
        return compute(shown.append)
    except UserError as error:
        if not shown:
            raise
        warnings.warn(f"{error}; the result is returned all the same", RuntimeWarning, stacklevel=3)
        return shown[0]
