"""Lines of a workload file, one by one: UTF-8; plain, gzip or xz, told by the first bytes."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvtwin.workloads.errors import WorkloadError

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, text)`` of every line of ``path`` that is not blank.

    A byte order mark, line ends (LF or CRLF) and blanks around the text are taken off. Raises
    `WorkloadError` when the file cannot be opened, unpacked or decoded.
    """
    if path.is_fifo():
        raise WorkloadError(str(path), "expected a file, found a pipe: a workload is read more than once")
    try:
        with open(path, "rb") as file, io.TextIOWrapper(_unpacked(file), encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                text = line.strip()
                if text:
                    yield number, text
    except UnicodeDecodeError:
        raise WorkloadError(str(path), "expected UTF-8 text (plain, gzip or xz)") from None
    except EOFError:
        raise WorkloadError(str(path), "the compressed data ends early") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise WorkloadError(str(path), f"the compressed data is damaged: {error}") from None
    except OSError as error:
        raise WorkloadError(str(path), f"cannot be read: {error.strerror or error}") from None


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    magic = file.read(len(_XZ_MAGIC))
    file.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file)
    if magic == _XZ_MAGIC:
        return lzma.LZMAFile(file)
    return file
