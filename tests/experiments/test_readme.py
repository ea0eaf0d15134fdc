"""The rows of README's tables: every question's command runs, and prints what the row says to read."""

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from tests.experiments.test_docs import README
from tests.experiments.test_plot import SMALL_ISOLATION
from tests.experiments.test_size_log import NEW
from tests.parts import slow_but

ROOT = Path(__file__).parents[2]

SMALL = {
    "replay": "--num-prompts 80 --gpu rtx-4090 --max-model-len 4096 --num-gpu-blocks-override 300",
    "limit": "--num-prompts 40 --gpu l40s --max-model-len 4096 --precision 1 --workers 1",
    "curve": "--max-model-len 4096",
    "explain": "--num-prompts 80 --gpu rtx-4090 --max-model-len 4096 --num-gpu-blocks-override 300",
    "validate": "--limit 2 --max-model-len 1024 --num-gpu-blocks-override 130 --step-time zero",
}
"""What a command gets besides, so that it is quick, and short of memory."""

SWEEPS = "kvtwin sweep "
"""Those are run by test_configs.py."""


def table_after(heading):
    """The rows of the first table below a heading, as lists of cells."""
    lines = README[README.index(heading) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows]


def commands_of(ask):
    """The commands of a cell; a flag that stands alone goes with the command before it, or replaces its choice."""
    found = []
    for text in re.findall(r"`([^`]+)`", ask):
        if text.startswith("kvtwin "):
            found.append(text)
        elif text.startswith("--"):
            found.append(f"{found[0].removesuffix(' --request ID')} {text}")
    return found


QUESTIONS = table_after("## Questions it answers")


@pytest.fixture
def run_command(kvtwin, tmp_path, monkeypatch):
    """Run a command of the table on small things."""
    (tmp_path / "vllm.log").write_text(NEW)
    small_isolation = tmp_path / "isolation.yaml"
    small_isolation.write_text(yaml.safe_dump(SMALL_ISOLATION | {"workload": {"trace": "demo", "tenants": [2]}}))
    monkeypatch.chdir(tmp_path)

    def run(command):
        words = shlex.split(command.replace("TRACE", "demo"))[1:]
        if "RUN" in words:
            for name, blocks in (("a", "270"), ("b", "300")):
                small = shlex.split(SMALL["replay"])[:-1]
                assert kvtwin("replay", "demo", *small, blocks, "--out", tmp_path / name).code == 0
            words = [words[0], "a", "b"]
        if "vllm.log" in words:
            words += ["--model", "Llama-3.1-8B"]
        if words == ["isolation"]:
            words.append(str(small_isolation))
        given = set(words)
        more = [] if "--server" in words else shlex.split(SMALL.get(words[0], ""))  # which are vLLM's flags
        pairs = zip(more[::2], more[1::2], strict=True)
        words += [word for flag, value in pairs if flag not in given for word in (flag, value)]
        return kvtwin(*words)

    return run


def test_every_question_has_a_command():
    assert len(QUESTIONS) > 15
    for question, ask, read in QUESTIONS:
        assert question.endswith("?")
        assert commands_of(ask), question
        assert read


ROWS = {ask: read for _, ask, read in QUESTIONS if not commands_of(ask)[0].startswith(SWEEPS)}
QUICK = [ask for ask in ROWS if commands_of(ask)[0].startswith(("kvtwin size", "kvtwin trace"))]


@pytest.mark.parametrize("ask", slow_but(QUICK, ROWS), ids=str)
def test_what_a_row_asks_is_answered_as_it_says(run_command, ask):
    printed = ""
    for command in commands_of(ask):
        if "validate" in command:
            pytest.importorskip("torch")
        outcome = run_command(command.replace("--request ID", "--request c1t0"))
        assert outcome.code == 0, outcome
        printed += outcome.out
    for text in re.findall(r"`([^`]+)`", ROWS[ask]):
        assert text in printed, text


def test_sweeps_of_the_rows_are_bundled():
    asked = [command for _, ask, _ in QUESTIONS for command in commands_of(ask)]
    named = [command.split()[2] for command in asked if command.startswith(SWEEPS)]
    assert named
    assert all((ROOT / name).is_file() for name in named)


def test_folders_and_documents_are_there():
    folders = table_after("## What is in here")
    assert {cell.strip("`/") for cell, _ in folders} == {"engine", "workloads", "sim", "gpu", "experiments"}
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", README)
    assert len(links) > 30
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
