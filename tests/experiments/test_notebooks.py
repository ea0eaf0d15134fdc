"""The notebooks run from start to end, and end with a conclusion in words whose numbers are computed.

They are kept as text (jupytext's percent format), which Python runs as it is.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TRACES

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


MARK = "----- conclusion"


@pytest.fixture
def concluded(public_trace, tmp_path):
    """Run a notebook and return what its last cell prints."""

    def execute(path):
        text = path.read_text()
        if "KVTWIN_TRACES" in text:
            public_trace("llmservingsim/measured")
        before, cell, last = text.rpartition("# %%\n")
        script = tmp_path / path.name
        script.write_text(f"{before}{cell}print({MARK!r})\n{last}")
        settings = {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT), "KVTWIN_TRACES": str(TRACES)}
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition(f"{MARK}\n")[2]

    return execute


def cells(path):
    """(kind, text) of each cell."""
    header, *parts = re.split(r"^# %%(.*)$", path.read_text(), flags=re.MULTILINE)
    assert "format_name: percent" in header
    return [(kind.strip(), text.strip()) for kind, text in zip(parts[::2], parts[1::2], strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_concludes_in_words(concluded, path):
    assert cells(path)[-2] == ("[markdown]", "# ## Conclusion")
    conclusion = concluded(path)
    assert conclusion.count(".\n") >= 2
    assert len(conclusion.split()) > 30
    assert re.search(r"\d", conclusion)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_numbers_of_the_conclusion_are_computed(path):
    nodes = list(ast.walk(ast.parse(cells(path)[-1][1])))
    formats = [
        part
        for node in nodes
        if isinstance(node, ast.FormattedValue) and node.format_spec
        for part in ast.walk(node.format_spec)
    ]
    words = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in formats]
    texts = [word for word in words if isinstance(word, str)]
    assert texts
    assert not [text for text in texts if re.search(r"\d", text.replace("p99", ""))]


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
