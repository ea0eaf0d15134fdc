"""Files of plain rows are read as columns: whatever a file holds, records and errors are those of the exact reader."""

import random

import pytest

from kvtwin.workloads import FORMATS, WorkloadError, open_workload
from kvtwin.workloads.columns import NotPlainError

AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04,3,0"]
BURST = [
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "5,ChatGPT,472,18,490,Conversation log",
]
BURST += ["45.25,GPT-4,17,0,17,API log", "118,GPT-4,417,276,693,API log"]
MOONCAKE = ['{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]}']
MOONCAKE += ['{"timestamp": 3, "input_length": 1, "output_length": 0, "hash_ids": [0]}']
MOONCAKE += ['{"timestamp": 12, "input_length": 1030, "output_length": 10, "hash_ids": [7, 1, 9]}']

CHANGES = {
    "azure": [
        ("2023-11-16 18:17:04", "2024-02-29T00:00:00+00:00"),
        ("2023-11-16 18:17:04", "2023-02-29 00:00:00"),
        ("2023-11-16 18:17:04", "2023-13-01 00:00:00"),
        ("2023-11-16 18:17:04", "2023-00-16 18:17:04"),
        ("2023-11-16 18:17:04", "2023-11-16 24:00:00"),
        ("2023-11-16 18:17:04", "2023-11-16 18:17"),
        ("2023-11-16 18:17:04", "1969-12-31 23:59:59"),
        ("2023-11-16 18:17:04", "9999-11-16 18:17:04"),
        ("2023-11-16 18:17:04", "2023-11-16 18:17:04."),
        ("2023-11-16 18:17:04", "2023-11-16 18:17:60"),
        ("2023-11-16 18:17:04", "2023-11-16 18:17:04+01:00"),
        ("2023-11-16 18:17:04", "2O23-11-16 18:17:04"),
        ("03.9799600", "03.979960012"),
        ("03.9799600", "03.9799600123"),
        ("03.9799600", "03,9799600"),
        ("03.9799600", "03.979960+00:00"),
        ("03.9799600", "03Z"),
        ("4808", "0"),
        ("4808", "-4"),
        ("4808", "48.5"),
        ("4808", '"4808"'),
        (",10", ",0010"),
        (",10", ",10,1"),
        (",10", ", 10"),
        (",10", ","),
        (",10", ",12345678901234567"),
        (",10", ",9223372036854775808"),
        ("TIMESTAMP", " TIMESTAMP"),
        ("TIMESTAMP,ContextTokens", "ContextTokens,TIMESTAMP"),
        ("GeneratedTokens", "ContextTokens"),
        ("4808", "5000000"),
        ("4808", "5é"),
    ],
    "burstgpt": [
        ("5,ChatGPT", "5.123456789,Ch"),
        ("5,ChatGPT", "5.1234567891,Ch"),
        ("5,ChatGPT", "5e3,Ch"),
        ("5,ChatGPT", ".5,Ch"),
        ("5,ChatGPT", "5.,Ch"),
        ("5,ChatGPT", "-5,Ch"),
        ("5,ChatGPT", "9223372036,Ch"),
        ("5,ChatGPT", "9223372037,Ch"),
        ("472", "0"),
        (",17,0,", ",0,0,"),
        ("ChatGPT", "Chat,GPT"),
        ("ChatGPT", "ChatGPT né"),
        ("Log Type", "Session ID"),
        ("API log", '"API\nlog"'),
    ],
    "mooncake": [
        ('"timestamp": 3', '"timestamp": 3.5'),
        ('"timestamp": 3', '"timestamp": -3'),
        ('"timestamp": 0', '"timestamp": -0'),
        ('"timestamp": 0', '"timestamp": "0"'),
        ('"timestamp": 12', '"timestamp": 0012'),
        ('"timestamp": 12', '"timestamp": 9223372036854'),
        ('"timestamp": 12', '"timestamp": 9223372036855'),
        ('"timestamp": 12', '"timestamp": 12345678901234567'),
        ("[7, 9]", "[7,9]"),
        ("[7, 9]", "[7,  9]"),
        ("[7, 9]", '[7, "9"]'),
        ("[7, 9]", "[7, -9]"),
        ("[7, 9]", "[7, 9.0]"),
        ("[7, 9]", "[7]"),
        ("[7, 9]", "[70000, 16777215]"),
        ("[7, 9]", "[7, 16777216]"),
        ("[7, 9]", "[7, 9223372036854775808]"),
        ("[7, 9]", "[7, 9"),
        ("[7, 9]}", "[7, 9]} "),
        ("[7, 9]}", "[7, 9]}}"),
        ("[7, 9]}", "[7, 9]}{}"),
        ("[7, 1, 9]", "[7, 1, 9, ]"),
        ("[7, 1, 9]", "[[7, 1, 9]]"),
        ("[0]", "[]"),
        ("[0]", "0"),
        ("[0]", "null"),
        ('"input_length": 1,', '"input_length": 0,'),
        ('"input_length": 1,', '"input_length": 1, "priority": 2,'),
        ('"input_length": 1,', '"input_length": 1, "input_length": 1,'),
        ('"input_length": 1,', ""),
        ('"output_length": 0, ', '"output_length": true, '),
        ("output_length", "output_lengt"),
    ],
}
ROWS = {"azure": AZURE, "burstgpt": BURST, "mooncake": MOONCAKE}


def outcome(path, name, **settings):
    try:
        workload = open_workload(path, name, **settings)
    except WorkloadError as error:
        return str(error)
    return list(workload), workload.num_unsorted, workload.warnings


def check_equal(monkeypatch, path, name, **settings):
    """The outcome, which is the same without columns."""
    found = outcome(path, name, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(FORMATS[name], "columns", raise_not_plain)
        assert outcome(path, name, **settings) == found
    return found


def raise_not_plain(self, rows):
    raise NotPlainError


@pytest.mark.parametrize("name", ROWS)
def test_plain_rows_are_columns(monkeypatch, write, name):
    path = write(*ROWS[name])
    (columns,) = open_workload(path, name).columns()
    assert list(columns.records()) == list(open_workload(path))
    check_equal(monkeypatch, path, name)


@pytest.mark.parametrize(
    ("name", "old", "new"), [(name, *change) for name, changes in CHANGES.items() for change in changes]
)
def test_odd_rows_are_read_as_they_were(monkeypatch, write, name, old, new):
    text = "\n".join(ROWS[name])
    assert old in text
    path = write(text.replace(old, new, 1))
    check_equal(monkeypatch, path, name)
    check_equal(monkeypatch, path, name, skip_bad_lines=True)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("change", ["\r\n", "\r", "\n\n", "\n \n", "bom", "no end", "latin-1", "twice", "empty"])
def test_odd_files_are_read_as_they_were(monkeypatch, tmp_path, name, change):
    path = tmp_path / "trace"
    text = "\n".join(ROWS[name]) + "\n"
    content = {
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "no end": text[:-1].encode(),
        "latin-1": text.encode() + b"\xe9\n",
    }
    path.write_bytes(content.get(change, text.replace("\n", change).encode() if change.isspace() else text.encode()))
    if change == "empty":
        path.write_bytes(text.split("\n")[0].encode() if name != "mooncake" else b"")
    check_equal(monkeypatch, f"{path},{path}" if change == "twice" else path, name)


def test_rows_across_many_chunks(monkeypatch, write):
    """Lines, ids and times in chunks of a few lines, some of which are out of order."""
    monkeypatch.setattr("kvtwin.workloads.formats.text_lines._LARGE_CHUNK_BYTES", 200)
    rng = random.Random(0)
    rows = []
    for index in range(200):
        ids = [rng.randrange(40 + index) for _ in range(rng.randrange(1, 9))]
        row = f'{{"input_length":{512 * len(ids)},"hash_ids":{ids},"output_length":1,"timestamp":{10 * index}}}'
        rows.append(row.replace(", ", ","))
    records, num_unsorted, _ = check_equal(monkeypatch, write(*rows), "mooncake")
    assert (len(records), num_unsorted) == (200, 0)
    rng.shuffle(rows)
    path = write(*rows)
    _, num_unsorted, _ = check_equal(monkeypatch, path, "mooncake")
    assert num_unsorted > 50
    assert open_workload(path).columns() is None
