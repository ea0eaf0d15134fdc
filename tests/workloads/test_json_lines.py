import io
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.workloads.formats.json_lines import decoder, lines_of
from kvtwin.workloads.formats.text_lines import chunks_of_lines

MANY = list(range(70, 300))


def read(text):
    """Of each line its number and its value, or what the error says."""
    values = []
    for number, line in lines_of(io.BytesIO(text)):
        try:
            values.append((number, line.value()))
        except ValueError as error:
            values.append((number, str(error)))
    return values


def plain(text):
    values = []
    for number, line in enumerate(io.TextIOWrapper(io.BytesIO(text), encoding="utf-8-sig"), start=1):
        if not line.isspace():
            try:
                values.append((number, decoder.decode(line.strip())))
            except ValueError as error:
                values.append((number, str(error)))
    return values


def equal(one, other):
    one = one.tolist() if isinstance(one, array) else one
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_long_lists_become_arrays(separators):
    line = json.dumps({"a": MANY, "b": [1, 2], "c": [MANY, {"d": MANY}], "e": 10**16 - 1}, separators=separators)
    ((number, value),) = read(line.encode())
    assert number == 1
    assert isinstance(value["a"], array)
    assert isinstance(value["c"][1]["d"], array)
    assert isinstance(value["b"], list)
    assert equal(value, json.loads(line))


LISTS = [
    "1" + "0" * 15,
    "1" + "0" * 16,
    "1" + "0" * 30,
    "007",
    "-1",
    "1.5",
    "1e5",
    "NaN",
    "Infinity",
    '"x"',
    "",
    " 5",
    "5 ",
]


@pytest.mark.parametrize("odd", LISTS)
@pytest.mark.parametrize("place", [0, 100, len(MANY)])
@pytest.mark.parametrize("shape", ['{"a":[%s]}', '{"a":"[%s]","b":[%s]}', '{"a":"[%s]","b":NaN}', '{"a":x[%s]}', "[%s"])
def test_whatever_is_odd_is_read_as_python_reads_it(odd, place, shape):
    numbers = list(map(str, MANY))
    numbers.insert(place, odd)
    listed = ",".join(numbers)
    line = shape.replace("%s", listed)
    text = f'{{"ok":1}}\n{line}\n{{"ok":2}}\n'.encode()
    assert equal(read(text), plain(text))


PIECES = [
    "\n",
    "\r\n",
    "\r",
    " ",
    "\ufeff",
    "{}",
    "[]",
    '"é"',
    str(MANY),
    f'{{"a":{MANY}}}',
    f'"{MANY}"',
    "[1,2",
    "NaN",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_lines_are_those_of_a_text_file(text):
    assert equal(read(text.encode()), plain(text.encode()))


@given(st.lists(st.sampled_from(["\n", "ab", "c" * 40, "\ufeff"]), max_size=12).map("".join), st.integers(3, 50))
def test_chunks_hold_whole_lines(text, num_bytes):
    chunks = list(chunks_of_lines(io.BytesIO(text.encode()), num_bytes))
    assert b"".join(chunks) == text.removeprefix("\ufeff").encode()
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])
