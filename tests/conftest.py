"""What all tests share: settings, and the public traces.

The traces lie beside the repository, never in it; tests that need one skip where it is absent.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.parts import register_profiles

register_profiles()
settings.load_profile("quick")  # or what --hypothesis-profile says

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy: pytest's workers share the cores already

# Byte code is kept, whatever the environment says: a command that a test starts then takes half the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

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
