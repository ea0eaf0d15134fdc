"""What tests of readers share."""

from dataclasses import fields, replace

import pytest


@pytest.fixture
def write(tmp_path):
    """A function that writes lines to a file and returns its path."""

    def path(*lines, name="trace"):
        file = tmp_path / name
        file.write_text("\n".join(lines) + "\n")
        return file

    return path


@pytest.fixture
def written():
    """A function that gives a record as a file has it: no source, and lists of integers, however they are held."""

    def of(record):
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        lists = {name: list(value) for name, value in values.items() if hasattr(value, "tolist")}
        return replace(record, source="", **lists)

    return of
