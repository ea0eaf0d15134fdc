"""The one error that a bad workload file raises."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload that cannot be read: one line naming file, line, field and what was expected."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}" if source else message)
