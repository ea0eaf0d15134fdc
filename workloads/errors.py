"""The one error that a bad workload file raises."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload that cannot be read: one line naming file, line, field and what was expected.

    ``WorkloadError(*error.args)`` is an equal error: SimPy copies errors like that when a process raises them.
    """

    def __init__(self, source: str, message: str) -> None:
        super().__init__(source, message)

    def __str__(self) -> str:
        source, message = self.args
        return f"{source}: {message}" if source else str(message)
