"""What all tests share: settings, and the public traces.

The traces lie beside the repository, never in it; tests that need one skip where it is absent.
"""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kvtwin", deadline=None, derandomize=True, database=None)
settings.load_profile("kvtwin")  # no examples that depend on chance, no failures of a busy machine

TRACES = Path(__file__).parents[2] / "shared" / "traces"


@pytest.fixture
def public_trace():
    """A function from a name under shared/traces to its path."""

    def path(name):
        if not (TRACES / name).exists():
            pytest.skip(f"shared/traces/{name} is not here")
        return TRACES / name

    return path


@pytest.fixture(scope="session", autouse=True)
def one_name():
    """No module is imported under a second name, or classes would exist twice."""
    yield
    bare = [name for name in sys.modules if name.split(".")[0] in ("engine", "workloads", "sim", "gpu", "experiments")]
    assert bare == []
