"""What arrival times alone tell of the clock that wrote them: dates, and rows that count in different units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.time_units import SECOND_NS

_DAY_NS = 86_400 * SECOND_NS
_YEAR_NS = 366 * _DAY_NS
_DOUBTED_NS = 10 * SECOND_NS
_JUMP = 100
"""Units of time differ by 1,000; nothing between two arrivals makes the second a hundred times the first."""


def epoch_origin_ns(first_ns: int) -> int:
    """What to take off arrivals whose first is ``first_ns``: itself if it is a date, such as seconds since 1970."""
    return first_ns if first_ns >= _YEAR_NS else 0


def check_one_clock(times_ns: NDArray[np.int64]) -> tuple[int, str] | None:
    """The number of a row whose clock differs from the first row's, and what is wrong; None where there is none.

    Only clocks that started long ago can be told apart: dates in milliseconds and in microseconds, say. Read with one
    unit, some arrivals lie days or more after 0, and all others at least a hundred times as late.
    """
    in_order = np.sort(times_ns)
    early = in_order[:-1]
    jumps = np.flatnonzero((early >= _DAY_NS) & (in_order[1:] >= _JUMP * early.astype(np.float64)))
    if not len(jumps):
        return None
    is_late = times_ns > in_order[jumps[0]]
    index = int(np.argmax(is_late != is_late[0]))
    days = [f"{times_ns[row] / _DAY_NS:,.0f} days" for row in (0, index)]
    return index, (
        f"rows count time in different units: this one arrives {days[1]} after the start of the clock, the first "
        f"one {days[0]}"
    )


def clock_doubt(times_ns: NDArray[np.int64]) -> str | None:
    """What looks like rows of two units, though it may be a pause: arrivals that jump to a hundred times as late."""
    in_order = np.sort(times_ns - times_ns.min())
    early = in_order[:-1]
    jumps = np.flatnonzero((early >= _DOUBTED_NS) & (in_order[1:] >= _JUMP * early.astype(np.float64)))
    if not len(jumps):
        return None
    before_s, behind_s = (in_order[jumps[0] + step] / SECOND_NS for step in (0, 1))
    return f"nothing arrives from {before_s:,.0f} to {behind_s:,.0f} s: look at the unit of the times"
