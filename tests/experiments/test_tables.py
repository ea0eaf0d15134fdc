"""Tables of text: plain and whole where output is piped, in the terminal's width on a terminal."""

import os
import pty
import subprocess
import sys

import pytest

from kvtwin.experiments.display.tables import as_text, facts_table, table

ROWS = [("a/b [red]", "1,000", "words " * 40), ("表", "2", "few")]
PROGRAM = """
from kvtwin.experiments.display.tables import show, table
show("a line", table(("name", "number", "words"), [("x", "1,000,000", "some more words"), ("y", "2", "")], left=(0, 2)))
"""


def test_words_begin_and_numbers_end_below_each_other():
    assert as_text("", table(("", "number"), [("x", "1"), ("longer", "20,000")]), "end").splitlines() == [
        "",
        "        number",
        "x            1",
        "longer  20,000",
        "end",
    ]
    assert as_text(facts_table([("name", "what"), ("a", "")])) == "name  what\na"


def test_piped_text_is_whole_and_is_not_taken_for_markup():
    head, first, second = as_text(table(("name", "number", "words"), ROWS, left=(0, 2))).splitlines()
    assert head == "name       number  words"
    assert first == "a/b [red]   1,000  " + ("words " * 40).rstrip()
    assert second == "表              2  few"


@pytest.mark.parametrize("columns", [80, 20, 1])
def test_a_terminal_wraps_words_and_leaves_numbers_whole(columns):
    shown = on_terminal(columns, TERM="xterm")
    assert "\x1b[1mname" in shown
    assert "1,000,000" in shown
    lines = [line for line in shown.splitlines() if "\x1b" not in line]
    assert ("some more words" in shown) == (columns == 80)
    assert len(lines) == (3 if columns == 80 else 5)


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_none_are_wanted(setting):
    assert "\x1b[3" not in on_terminal(80, **{"TERM": "xterm"} | setting)


def on_terminal(columns, **environment):
    """What ``PROGRAM`` prints to a terminal of that width."""
    ours, theirs = pty.openpty()
    environment |= {"COLUMNS": str(columns), "PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", PROGRAM], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:  # Linux tells so that nobody writes any more
        pass
    os.close(ours)
    return b"".join(chunks).decode().replace("\r", "")
