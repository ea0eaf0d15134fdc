"""Everything here computes with torch; without it nothing is collected but the test that says so."""

from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent

if find_spec("torch") is None:
    collect_ignore = [str(path) for path in HERE.rglob("*.py") if path.name != "test_torch.py"]
