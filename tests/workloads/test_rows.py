"""Whatever holds a trace, its requests are the same."""

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile

import pyarrow
import pyarrow.parquet
import pytest

from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.formats.rows import Rows

ROWS = [
    {
        "timestamp": 1000 * i,
        "input_length": 700 + 300 * i,
        "output_length": 4,
        "hash_ids": [0, *range(i, i + 1 + (i > 1))],
    }
    for i in range(4)
]
ROWS[0]["hash_ids"] = [0, 1]
ROWS[1]["hash_ids"] = [0, 1]
ROWS[2]["hash_ids"] = [0, 1, 2]
ROWS[3]["hash_ids"] = [0, 1, 2, 3]


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._trace.jsonl", b"junk")
        archive.writestr("trace.jsonl", content)
    return file.getvalue()


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


LINES = "\n".join(map(json.dumps, ROWS)).encode()
CONTAINERS = {
    "lines": LINES,
    "a final line end and blank lines": b"\n\n" + LINES.replace(b"\n", b"\r\n\r\n") + b"\n",
    "array in one line": json.dumps(ROWS).encode(),
    "array, a row a line": b"[\n" + b",\n".join(json.dumps(row).encode() for row in ROWS) + b"\n]\n",
    "pretty array": json.dumps(ROWS, indent=2).encode(),
    "pretty objects": "\n".join(json.dumps(row, indent=1) for row in ROWS).encode(),
    "Parquet": parquet(ROWS),
    "byte order mark": b"\xef\xbb\xbf" + LINES,
}
PACKINGS = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstandard": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
    "zip": zipped,
}


def plain(workload):
    return [
        (record.arrival_ns, record.prompt_tokens, record.output_tokens, list(record.hash_ids)) for record in workload
    ]


@pytest.fixture
def expected(write):
    return plain(open_workload(write(*map(json.dumps, ROWS), name="expected")))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_containers_and_packings(tmp_path, expected, container, packing):
    path = tmp_path / "trace"
    path.write_bytes(PACKINGS[packing](CONTAINERS[container]))
    if container == "Parquet" and packing != "plain":
        pytest.skip("Parquet packs itself")
    workload = open_workload(path)
    assert (workload.format_name, plain(workload), plain(workload)) == ("mooncake", expected, expected)


def test_long_values_over_many_chunks(tmp_path):
    rows = [{"timestamp": i, "input_length": 10, "output_length": 1, "x": "y" * 700_000 * (i % 3)} for i in range(12)]
    path = tmp_path / "trace.json"
    for text in (json.dumps(rows), json.dumps(rows, indent=1)):
        path.write_text(text)
        assert [record.arrival_ns for record in open_workload(path)] == [i * 10**6 for i in range(12)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(ROWS, indent=2)[:-20], "malformed JSON"),
        (json.dumps(ROWS)[:-1], "malformed JSON: ends early"),
        ("[\n{}\n{}\n]", "not a known workload format"),
        ('{\n "timestamp": 0,\n "input_length" 5\n}', ":3: malformed JSON: Expecting ':' delimiter"),
        (json.dumps([ROWS[0], 5]), ":1: expected a JSON object, got 5"),
        ("", "found none"),
        ("[]", "found none"),
    ],
)
def test_json_over_many_lines_that_is_wrong(tmp_path, content, message):
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert message in str(caught.value)


def test_lines_are_named_in_values_that_span_lines(tmp_path):
    path = tmp_path / "trace"
    path.write_text(json.dumps(ROWS, indent=1))
    lines = json.dumps(ROWS, indent=1).split("\n")
    starts = [number for number, line in enumerate(lines, start=1) if line.startswith(" {")]
    assert [row.source for row in Rows((path,))] == [f"{path}:{number}" for number in starts]


def test_csv_with_quotes_and_missing_cells(write):
    path = write("Timestamp,Model,Request tokens,Response tokens", '5,"Chat, GPT",10,"3"', "6,,11,4", "7,x,12,")
    with pytest.raises(WorkloadError, match=":4: Response tokens: expected this column, but it is missing"):
        open_workload(path)
    workload = open_workload(path, skip_bad_lines=True)
    assert [(record.prompt_tokens, record.output_tokens) for record in workload] == [(10, 3), (11, 4)]


def test_several_files_are_read_as_one(tmp_path, expected):
    for number, rows in enumerate((ROWS[:2], ROWS[2:])):
        (tmp_path / f"part-{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parts = sorted(tmp_path.glob("part*"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".hidden").write_text("junk")
    for path in parts:
        (folder / path.name).write_bytes(gzip.compress(path.read_bytes()))
    for name in (",".join(map(str, parts)), tmp_path / "part-*.jsonl", folder):
        workload = open_workload(name)
        assert plain(workload) == expected
        assert len({record.request_id for record in workload}) == 4
        assert len(workload.paths) == 2


def test_files_of_two_formats_are_no_one_trace(write):
    one = write(json.dumps(ROWS[0]), name="a")
    other = write("Timestamp,Request tokens,Response tokens", "5,10,3", name="b")
    with pytest.raises(
        WorkloadError, match=f"{other}: has the format burstgpt, and {one} mooncake: `kvtwin trace merge"
    ):
        open_workload(f"{one},{other}")


def test_the_kvtwin_format_has_a_header_in_each_file(write):
    row = {"id": "a", "arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 1}
    paths = [write('{"kvtwin_workload": 1}', json.dumps(row | {"id": name}), name=name) for name in "ab"]
    assert [record.request_id for record in open_workload(",".join(map(str, paths)))] == ["a", "b"]


def test_what_cannot_be_unpacked(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(bz2.compress(LINES))
    with pytest.raises(WorkloadError, match="UTF-8"):
        open_workload(path)


def test_reading_needs_no_arrow_unless_there_is_some(write):
    """Parquet and zstandard are Arrow's; other files must not wait for its import."""
    import subprocess

    path = write(*map(json.dumps, ROWS))
    program = (
        f"import sys; from kvtwin.workloads import open_workload; open_workload({str(path)!r}); "
        "print('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
