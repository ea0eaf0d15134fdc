"""Tables of text: plain and whole where output is piped, in the terminal's width on a terminal."""

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console

from kvtwin.experiments.display.shares import figure_cell, figure_heading, is_share
from kvtwin.experiments.display.tables import as_text, facts_table, table
from kvtwin.experiments.display.values import short_texts

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


def test_a_page_of_so_many_columns_has_headings_in_lines():
    drawn = as_text(table(("key", "prompt tokens", "mean usage (%)"), [("0", "1,234", "5.00")], page_columns=20))
    headings = ["              mean", "     prompt  usage", "key  tokens    (%)"]
    assert drawn.splitlines() == [*headings, "0     1,234   5.00"]


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
    assert len(lines) == (3 if columns == 80 else 7)


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


def test_a_wide_table_is_narrowed_by_its_headings_and_then_goes_on_below():
    wide = table(("option", "a_long_name_of_1", "a_long_name_of_2", "3"), [("x", "1", "22", "333")])
    assert [part.headings for part in wide.in_parts(33)] == [wide.headings]
    drawn = wide.drawn(33)
    assert [str(column.header) for column in drawn.columns] == [
        "\noption",
        "a_long_\nname_of_1",
        "a_long_\nname_of_2",
        "\n3",
    ]
    assert [part.headings for part in wide.in_parts(14)] == [
        ("option", "a_long_name_of_1"),
        ("option", "a_long_name_of_2"),
        ("option", "3"),
    ]
    for width in range(5, 60):
        for part in wide.in_parts(width):
            assert sum(column.min_width or 6 for column in part.drawn(width).columns) <= max(width, part.least_width)


def test_of_json_objects_only_what_differs_is_shown():
    first, second = '{"method": "ngram", "k": 2, "deep": {"a": 1}}', '{"method": "ngram", "k": 3, "deep": {"a": 1}}'
    assert short_texts([first, None, second]) == ["k 2", "-", "k 3"]
    assert short_texts([first, '{"method": "ngram"}']) == ["k 2, deep {'a': 1}", ""]
    assert short_texts([first, first]) == ["method ngram, k 2, deep {'a': 1}"] * 2
    assert short_texts([16, True, None, "{no", first]) == ["16", "on", "-", "{no", first]


def test_shares_are_percentages_in_tables_and_all_shares_are_known(summary_of, mooncake):
    assert figure_heading("prefix_cache_hit_rate") == "prefix_cache_hit_rate (%)"
    assert figure_cell("prefix_cache_hit_rate", 0.5) == "50.00"
    assert figure_cell("prefix_cache_hit_rate", None) == "-"
    assert (figure_heading("num_preemptions"), figure_cell("num_preemptions", 1000)) == ("num_preemptions", "1,000")
    summary = summary_of(mooncake(), "--kv-offloading-size", "1", "--data-parallel-size", "2")
    rates = {key for key in summary if key.endswith(("rate", "share", "survival", "usage_mean", "usage_peak"))}
    assert {key for key in rates if not is_share(key)} == {"request_rate"}
    assert len(rates) > 8
    assert all(value is None or 0 <= value <= 1 for key, value in summary.items() if is_share(key))


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_table_of_words_loses_none_of_them(width):
    words = ("meta-llama/Llama-3.1-8B", "contiguous-max", "1,234", "kind full_attention, block_size 16")
    drawn = StringIO()
    made = table(("", "a run", "another run"), [(f"engine.{word}", word, word) for word in words], left=range(3))
    for part in made.in_parts(width):
        console = Console(file=drawn, width=width, color_system=None)
        console.print(part.drawn(width))
    text = drawn.getvalue()
    assert max(map(len, text.splitlines())) <= width
    letters = Counter(re.sub(r"\s", "", text))
    asked = Counter("".join("".join((f"engine.{word}", word, word)) for word in words).replace(" ", ""))
    assert not asked - letters
