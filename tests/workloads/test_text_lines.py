import gzip
import lzma

import pytest

from kvtwin.workloads import WorkloadError
from kvtwin.workloads.formats.text_lines import open_text


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_line_ends_blank_lines_and_marks(tmp_path, pack):
    path = tmp_path / "no-suffix"
    path.write_bytes(pack("\ufeffa\r\n\r\nb ä\nc".encode()))
    with open_text(path) as text:
        assert list(text) == ["a\n", "\n", "b ä\n", "c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"a\n" * 9, mtime=0)[:-9], ": the compressed data ends early"),
        (lzma.compress(b"a\n" * 9)[:-9], ": the compressed data ends early"),
        (b"\x1f\x8bnot gzip", ": the compressed data is damaged: Unknown compression method"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(WorkloadError) as caught, open_text(path) as text:
        list(text)
    assert str(caught.value) == f"{path}{message}"


def test_files_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(WorkloadError) as caught, open_text(path) as text:
            list(text)
        assert str(caught.value) == f"{path}: cannot be read: {reason}"
