"""What README and docs say about the commands is so."""

import re
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from kvtwin.experiments.command_line.application import read_words
from kvtwin.experiments.commands.registry import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OUTPUT = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
HARDWARE = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")


def commands(text):
    """Every whole `kvtwin ...` command in shell blocks and example lines, as words."""
    for line in text.splitlines():
        for part in re.sub(r"\s#.*", "", line).split(";"):
            if part.strip().startswith("kvtwin ") and "COMMAND" not in part:
                yield tuple(shlex.split(part))[1:]


EPILOGUES = "\n".join(
    import_module(f"kvtwin.experiments.commands.{command.module}").EPILOGUE for command in COMMANDS.values()
)


@pytest.mark.parametrize("words", sorted(set(commands(README)) | set(commands(EPILOGUES))), ids=" ".join)
def test_commands_of_the_documents_are_understood(words, tmp_path):
    if words[0] == "validate" and words[1].endswith(".yaml") and not (ROOT / words[1]).exists():  # a reader's own
        (tmp_path / words[1]).write_text("trace: demo\n")
        words = (words[0], str(tmp_path / words[1]), *words[2:])
    name = next(" ".join(words[:length]) for length in (2, 1) if " ".join(words[:length]) in COMMANDS)
    if "--help" not in words:
        read_words(name, list(words[len(name.split()) :]))


def test_the_readme_shows_the_end_of_the_demo(kvtwin):
    shown = README[README.index("```text") :].split("```")[1].removeprefix("text\n")
    assert kvtwin("demo").out.endswith(shown)


def test_every_line_of_the_cache_section_is_explained(kvtwin):
    section = kvtwin("demo").out.partition("KV Cache (vLLM")[2].partition("=" * 50)[0].splitlines()[1:]
    assert len(section) > 10
    for line in section:
        label = re.split(r"[:,(]|\d", line.strip())[0].strip()
        assert f"| {label}" in OUTPUT, label


def test_yaml_files_of_the_documents_work(kvtwin, mooncake, tmp_path):
    gpu, links, step_time = re.findall(r"```yaml\n(.*?)```", HARDWARE, flags=re.DOTALL)
    (tmp_path / "gpu.yaml").write_text(gpu)
    (tmp_path / "step-time.yaml").write_text(step_time)
    (tmp_path / "links.yaml").write_text(textwrap.dedent(links))
    pair = ["--tensor-parallel-size", "2", "--interconnect", tmp_path / "links.yaml"]
    assert "note    interconnect MY-LINKS" in kvtwin("replay", mooncake(), *pair, "--num-prompts", 5).out
    options = ["--gpu", tmp_path / "gpu.yaml", "--step-time", tmp_path / "step-time.yaml", "--max-model-len", "8192"]
    outcome = kvtwin("replay", mooncake(), *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert "MY-GPU" in outcome.out
    assert "step time linear" in outcome.out
