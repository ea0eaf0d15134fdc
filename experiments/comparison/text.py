"""Runs side by side, to be read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container
from contextlib import suppress
from typing import Any

from kvtwin.experiments.comparison.facts import Row
from kvtwin.experiments.display.shares import figure_cell, figure_heading, is_share
from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import cell_text


def text_parts(facts: dict[str, Any], show_all: bool) -> list[Part]:
    """What differs, section by section; with ``show_all`` what is equal, too."""
    runs = facts["runs"]
    parts: list[Part] = [f"kvtwin compare: {', '.join(runs)}; differences are to {runs[0]}"]
    for title, key, as_flags in (("options", "options", True), ("resolved settings", "settings", False)):
        cells = [
            [f"--{row['name'].replace('_', '-')}" if as_flags else row["name"], *map(_words, row["values"])]
            for row in facts[key]
            if show_all or not row["equal"]
        ]
        parts += _section(title, facts[key], show_all, ["", *runs], cells, left=range(1 + len(runs)))
    single = [row for row in facts["figures"] if not any(isinstance(value, list | dict) for value in row["values"])]
    figures = [_figure_cells(row) for row in single if show_all or not row["equal"]]
    headings = ["", runs[0], *(heading for name in runs[1:] for heading in (name, "difference", "(%)"))]
    parts += _section("figures", single, show_all, headings, figures)
    parts += _verdict_lines(runs, facts["verdicts"], show_all)
    for name, compared in zip(runs[1:], facts["requests"], strict=True):
        parts += ["", f"requests, {name} against {runs[0]}", _compared_requests(compared)]
    return parts


def _section(
    title: str,
    rows: list[Row],
    show_all: bool,
    headings: list[str],
    cells: list[list[str]],
    left: Container[int] = (0,),
) -> list[Part]:
    num_equal = sum(row["equal"] for row in rows)
    note = "" if show_all else f"; {num_equal} are equal (--all shows them)"
    heading = f"{title}: {len(rows) - num_equal} differ{note}"
    indented = [[f"  {name}", *values] for name, *values in cells]
    return ["", heading, *([table(headings, indented, left)] if cells else [])]


def _figure_cells(row: Row) -> list[str]:
    key = row["name"]
    cells = [figure_heading(key), _figure(key, row["values"][0])]
    for value, difference, relative in zip(
        row["values"][1:], row["differences"][1:], row["relative_differences"][1:], strict=True
    ):
        cells += [
            _figure(key, value),
            "" if difference is None else ("+" if difference > 0 else "") + _figure(key, difference),
            "" if relative is None else f"{100 * relative:+.1f}",
        ]
    return cells


def _figure(key: str, value: Any) -> str:
    return figure_cell(key, value) if is_share(key) else _text(value)


def _verdict_lines(runs: list[str], verdicts: list[list[str]], show_all: bool) -> list[str]:
    lines = []
    for name, said in zip(runs, verdicts, strict=True):
        shown = [sentence for sentence in said if show_all or not all(sentence in other for other in verdicts)]
        lines += [f"  {name}: {sentence}" for sentence in shown]
    return ["", "verdicts", *lines] if lines else []


def _compared_requests(compared: dict[str, Any]) -> Part:
    if "not_compared" in compared:
        return f"  not compared: {compared['not_compared']}"
    only = [compared["num_only_first"], compared["num_only_other"]]
    rows = [("in both", compared["num_compared"], f"only in one {only[0]:,} / {only[1]:,}" if any(only) else "")]
    for name, key in (("hit tokens", "hit_tokens"), ("preemptions", "preemptions")):
        more, fewer = compared[f"num_more_{key}"], compared[f"num_fewer_{key}"]
        rows.append((f"different {name}", more + fewer, f"more {more:,} / fewer {fewer:,}"))
    later, earlier = compared["num_later_first_tokens"], compared["num_earlier_first_tokens"]
    median_ms = compared["median_later_ms"]
    pause = "" if median_ms is None else f"; median {median_ms:+,.1f} ms from arrival"
    rows.append(("first token later", later, f"earlier {earlier:,}{pause}"))
    if compared["num_other_finish_reason"]:
        rows.append(("ended differently", compared["num_other_finish_reason"], ""))
    return table(("", "", ""), [(f"  {name}", f"{count:,}", note) for name, count, note in rows], left=(0, 2))


def _text(value: Any) -> str:
    return cell_text(value, digits=5)


def _words(value: Any) -> str:
    """A setting as people read it: of lists what is equal once, of objects what is not empty, or was given."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return ", ".join(f"{name} {_words(each)}" for name, each in json.loads(value).items()) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items() if each) or "none"
    if isinstance(value, list):
        counts = Counter(map(_words, value))
        return "; ".join(text if number == 1 else f"{number} x {text}" for text, number in counts.items()) or "none"
    return _text(value)
