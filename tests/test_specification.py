"""The specification names what carries out and what holds each rule; sections of it that others name exist."""

import ast
import functools
import importlib
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/specification.md").read_text()
SECTIONS = dict(re.findall(r"^## (\d+)\. (.+)$", TEXT, flags=re.MULTILINE))
RULES = dict(re.findall(r"^\*\*(\d+\.\d+) (.*?)(?=^\*\*\d+\.\d+ |^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
NUMBERS = {*SECTIONS, *RULES}

NUMBER = r"\d+(?:\.\d+)?"
REFERENCE = re.compile(rf"specification,\s+sections?\s+({NUMBER}(?:(?:,| and| to)\s+{NUMBER})*)", re.IGNORECASE)
ROOMS = ("engine", "experiments", "gpu", "notebooks", "sim", "tests", "workloads")
READERS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
READERS += [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if path != Path(__file__)]


def named(number, label):
    """What stands in backticks behind ``*Code:*`` or ``*Tests:*`` of a rule."""
    (names,) = re.findall(rf"^\*{label}:\*(.*?)(?=^\*\w+:\*|^$|\Z)", RULES[number], flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`(.*?)`", names)


def exists(name):
    """Whether ``name`` can be imported from kvtwin: modules first, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["kvtwin", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        try:
            functools.reduce(getattr, parts[length:], found)
        except AttributeError:
            return False
        return True
    return False


@functools.cache
def names_in(path):
    """Names of the classes and functions of a test file, methods as ``Class::method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def is_there(name):
    """Whether ``tests/`` has this golden log, or this test."""
    if name.startswith("golden"):
        return (ROOT / "tests/parity" / f"{name}.config.json").is_file()
    path, _, test = name.partition("::")
    return (ROOT / "tests" / path).is_file() and test in names_in(ROOT / "tests" / path)


def test_sections_and_rules_are_numbered_without_gaps():
    assert list(SECTIONS) == [str(number) for number in range(1, len(SECTIONS) + 1)]
    for section, group in itertools.groupby(RULES, key=lambda number: number.partition(".")[0]):
        numbers = list(group)
        assert numbers == [f"{section}.{index}" for index in range(1, len(numbers) + 1)]
    assert len(RULES) == len(re.findall(r"^\*Code:\*", TEXT, flags=re.MULTILINE)) > 90


@pytest.mark.parametrize("number", RULES)
def test_a_rule_names_what_carries_it_out_and_what_holds_it(number):
    functions, tests = named(number, "Code"), named(number, "Tests")
    assert functions
    assert [name for name in functions if not exists(name)] == []
    assert tests
    assert [name for name in tests if not is_there(name)] == []


def test_sections_that_are_named_exist():
    places = [
        (path.relative_to(ROOT), number)
        for path in READERS
        for numbers in REFERENCE.findall(path.read_text())
        for number in re.findall(NUMBER, numbers)
    ]
    assert len(places) > 40
    assert [place for place in places if place[1] not in NUMBERS] == []


def test_the_specification_refers_to_its_own_sections():
    groups = re.findall(rf"\(({NUMBER}(?:, {NUMBER})*)\)|[Ss]ections? ({NUMBER})", TEXT)
    numbers = [number for group in groups for number in re.findall(NUMBER, " ".join(group))]
    assert len(numbers) > 30
    assert [number for number in numbers if number not in NUMBERS] == []


def test_sections_are_named_in_one_form():
    """So that the test above finds them."""
    other_form = re.compile(r"\bspec[.]? sections?\b|spec-additions", re.IGNORECASE)
    assert [str(path) for path in READERS if other_form.search(path.read_text())] == []
