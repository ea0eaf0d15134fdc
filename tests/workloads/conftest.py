"""Real traces lie beside the repository, never in it; tests that need one skip where it is absent."""

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


@pytest.fixture
def trace():
    """A function from a name under shared/traces to its path."""

    def path(name: str) -> Path:
        if not (TRACES / name).exists():
            pytest.skip(f"shared/traces/{name} is not here")
        return TRACES / name

    return path


@pytest.fixture
def write(tmp_path):
    """A function that writes lines to a file and returns its path."""

    def path(*lines: str, name: str = "trace") -> Path:
        file = tmp_path / name
        file.write_text("\n".join(lines) + "\n")
        return file

    return path
