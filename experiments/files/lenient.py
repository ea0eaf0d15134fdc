"""Files that are written beside something more important, which must not fail because a disk is full."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path


class LenientFile(io.RawIOBase):
    """A new file that takes bytes until the disk does not: then ``failure`` says why, and all else is dropped."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.failure: str | None = None
        self._file: io.BufferedWriter | None = None
        self._position = 0
        try:
            self._file = open(path, "wb")  # noqa: SIM115
        except OSError as error:
            self._fail(error)

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes so far, those that were dropped included."""
        return self._position

    def write(self, content: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Write all of ``content``; no error is raised."""
        number = memoryview(content).nbytes
        self._position += number
        if self._file and not self.failure:
            try:
                self._file.write(content)
            except OSError as error:
                self._fail(error)
        return number

    def close(self) -> None:
        """Write what is left. No error is raised."""
        if self._file and not self.closed:
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)
                with suppress(OSError):
                    self._file.close()
        super().close()

    def _fail(self, error: OSError) -> None:
        self.failure = self.failure or error.strerror or str(error)
