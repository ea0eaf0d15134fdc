"""Which kvtwin this is."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def kvtwin_version() -> str:
    """The version of the installed package, or of the source tree that runs without having been installed."""
    try:
        return version("kvtwin")
    except PackageNotFoundError:
        settings = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))
        return str(settings["project"]["version"])
