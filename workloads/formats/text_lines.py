"""What lies in a trace file, unpacked: plain, gzip, xz, zstandard or zip, told by the first bytes."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from kvtwin.workloads.columns import NotPlainError
from kvtwin.workloads.errors import WorkloadError

_PACKED = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: _zstandard(file),
    b"PK\x03\x04": lambda file: _only_member(file),
}
"""What opens a packed file, by its first bytes."""

NO_TEXT = "expected UTF-8 text (plain, gzip, xz, zstandard or zip)"
_MOST_MAGIC = max(map(len, _PACKED))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 17
_LARGE_CHUNK_BYTES = 1 << 19


def chunks_of_lines(file: BinaryIO, num_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """What ``file`` holds, whole lines at a time, which end with a line feed; of the file's last line it may lack.

    A byte order mark is taken off. What can be read before an error comes before it.
    """
    rest, failure = b"", None
    is_first = True
    while True:
        pieces, size = [rest], len(rest)
        wanted = max(num_bytes, 2 * size)
        try:
            while size < wanted and (piece := file.read1(num_bytes)):  # type: ignore[attr-defined]
                pieces.append(piece)
                size += len(piece)
        except Exception as error:
            failure = error
        chunk = b"".join(pieces)
        if is_first:
            chunk, is_first = chunk.removeprefix(_BYTE_ORDER_MARK), False
        end = chunk.rfind(b"\n") + 1
        is_last = size < wanted
        if is_last and failure is None:
            end = len(chunk)
        if end:
            lines = chunk[:end]
            yield lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in lines else lines
        if failure is not None:
            raise failure
        if is_last:
            return
        rest = chunk[end:]


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The text of ``path``, without a byte order mark; `check_text` finds what is none.

    Raises `WorkloadError` as `reading_errors` does.
    """
    with (
        reading_errors(path),
        open_bytes(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape") as text,
    ):
        yield text


def check_text(source: str, *texts: str) -> None:
    """WorkloadError: ``texts`` of `open_text`, at the place ``source``, were no UTF-8."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise WorkloadError(source, NO_TEXT) from None


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The unpacked content of ``path``."""
    if path.is_fifo():
        raise WorkloadError(str(path), "expected a file, found a pipe: a workload is read more than once")
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "rb"))
        magic = file.read(_MOST_MAGIC)
        file.seek(0)
        for start, unpacked in _PACKED.items():
            if magic.startswith(start):
                file = stack.enter_context(unpacked(file))
        yield file


def plain_lines(path: Path) -> Iterator[bytes]:
    """Many whole lines of a file at a time, each with its line feed; NotPlainError where the file cannot be read."""
    try:
        with reading_errors(path), open_bytes(path) as file:
            for lines in chunks_of_lines(file, _LARGE_CHUNK_BYTES):
                yield lines if lines.endswith(b"\n") else lines + b"\n"
    except WorkloadError:
        raise NotPlainError from None


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Whatever goes wrong in here with the file ``path`` becomes a `WorkloadError`."""
    try:
        yield
    except EOFError:
        raise WorkloadError(str(path), "the compressed data ends early") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError) as error:
        raise WorkloadError(str(path), f"the compressed data is damaged: {error}") from None
    except OSError as error:
        reason = "the compressed data is damaged: " if "ZSTD" in str(error) else "cannot be read: "
        raise WorkloadError(str(path), f"{reason}{error.strerror or error}") from None


def _zstandard(file: IO[bytes]) -> IO[bytes]:
    import pyarrow

    return io.BufferedReader(_Readable(pyarrow.CompressedInputStream(file, "zstd")))


class _Readable(io.RawIOBase):
    """Arrow's stream, as Python's text wrappers want it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _only_member(file: Any) -> IO[bytes]:
    archive = zipfile.ZipFile(file)
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(names) != 1:
        found = ", ".join(names[:5]) or "none"
        raise WorkloadError(file.name, f"expected one file in the archive, found {len(names)}: {found}")
    return archive.open(names[0])
