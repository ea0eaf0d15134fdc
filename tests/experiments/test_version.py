"""The version, installed and not."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from kvtwin.experiments.files import version
from kvtwin.experiments.files.version import kvtwin_version

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_an_installed_package_says_its_version(monkeypatch):
    monkeypatch.setattr(version, "version", lambda name: f"{name} 7")
    assert kvtwin_version() == "kvtwin 7"


def test_a_source_tree_that_is_not_installed_has_one_too(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert kvtwin_version() == DECLARED
