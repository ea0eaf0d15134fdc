"""Progress: a bar on a terminal, lines elsewhere, nothing when asked, nothing of what is short."""

import io
import sys

import pytest

from kvtwin.experiments.display import progress as shown
from kvtwin.experiments.display.progress import be_quiet, followed, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def errors(monkeypatch):
    def to(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    yield to
    be_quiet(False)


def test_a_line_now_and_then(errors, monkeypatch):
    stream, now_s = errors(io.StringIO()), [100.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now_s[0])
    with progress("replay", "requests", 3000, initial=10) as bar:
        for _ in range(25):
            now_s[0] += 1
            bar.update(100)
    assert stream.getvalue() == (
        "kvtwin: replay: 1,010 of 3,000 requests, 10 s\nkvtwin: replay: 2,010 of 3,000 requests, 20 s\n"
    )
    assert bar.n == 2510


def test_nothing_of_what_is_short(errors):
    for stream in (errors(io.StringIO()), errors(Terminal())):
        assert list(followed(range(5), "reading", "requests")) == [0, 1, 2, 3, 4]
        assert stream.getvalue() == ""


def test_a_bar_on_a_terminal_that_goes_away(errors, monkeypatch):
    monkeypatch.setattr(shown, "BAR_AFTER_S", 0)
    stream = errors(Terminal())
    with progress("sweep", "points", 4) as bar:
        bar.update(1)
        bar.refresh()
    assert "sweep, points:  25%" in stream.getvalue()
    assert stream.getvalue().rpartition("\r")[2] == ""


def test_quiet(errors, monkeypatch):
    monkeypatch.setattr(shown, "LINE_EVERY_S", 0)
    stream = errors(io.StringIO())
    be_quiet(True)
    with progress("replay", "requests", 5) as bar:
        bar.update(5)
    assert stream.getvalue() == ""
    be_quiet(False)
    with progress("replay", "requests", 5) as bar:
        bar.update(5)
    assert stream.getvalue() == "kvtwin: replay: 5 of 5 requests, 0 s\n"
    with progress("replay", "requests", 5, show=False) as bar:
        bar.update(5)
    assert stream.getvalue().count("\n") == 1


def test_quiet_is_of_every_command(kvtwin, monkeypatch):
    monkeypatch.setattr(shown, "LINE_EVERY_S", 0)
    monkeypatch.setattr("tests.experiments.conftest.visible", lambda text: text)
    assert "kvtwin: reading: 300 of 300 requests" in kvtwin("trace", "inspect", "demo").err
    outcome = kvtwin("trace", "inspect", "demo", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
