"""What tests of the command line share: running it, and small files to run it on."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import kvtwin as kv
from kvtwin.experiments.command_line import main

SCRIPT = Path(sys.executable).with_name("kvtwin")
SMALL_POOL = ("--num-gpu-blocks-override", "2000", "--max-model-len", "4096")
SMALL_SERVER = (*SMALL_POOL, "--step-time", "zero")


def small_server(*options):
    """A small server's options and these; its steps take no time, unless these say how long they take."""
    return (*(SMALL_POOL if "--step-time" in options else SMALL_SERVER), *options)


BROWSER_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,1000"
)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def complains(self, *words):
        """Assert that this is a mistake of the user's, told in one line with ``words`` in it."""
        assert (self.code, self.out) == (2, ""), self
        assert self.err.startswith("kvtwin: error: "), self
        assert self.err.count("\n") == 1, self
        for word in words:
            assert word in self.err, self


def visible(text):
    """What a terminal shows in the end: a slow machine draws progress bars, and wipes them out; or prints lines."""
    text = re.sub(r"^kvtwin: [a-z ]+: [\d,]+( of [\d,]+)? [a-z]+, \d+ s\n", "", text, flags=re.MULTILINE)
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


@pytest.fixture
def kvtwin(capsys):
    """Run the command in this process."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Outcome(code, out, visible(err))

    return run


@pytest.fixture
def export(kvtwin, tmp_path):
    """Export a run and return the text of the file."""

    def text(run, kind):
        (tmp_path / kind).unlink(missing_ok=True)
        outcome = kvtwin("export", run, "--to", kind, "--out", tmp_path / kind)
        assert (outcome.code, outcome.out) == (0, f"{tmp_path / kind}\n"), outcome
        return (tmp_path / kind).read_text()

    return text


def drawn_requests(number, apart_ns, most_prompt_tokens, outputs):
    """Requests ``apart_ns`` after one another; prompts from 200 tokens on and ``outputs`` (from, below) are drawn."""
    draw = np.random.default_rng(0)
    return [
        kv.RequestRecord(
            request_id=str(index),
            arrival_ns=index * apart_ns,
            prompt_tokens=int(draw.integers(200, most_prompt_tokens)),
            output_tokens=int(draw.integers(*outputs)),
        )
        for index in range(number)
    ]


@pytest.fixture
def summary_of(kvtwin):
    """Replay on a small server and return the JSON summary, which must be valid."""

    def run(trace, *options):
        outcome = kvtwin("replay", trace, *small_server(*options), "--json")
        assert outcome.code in (0, 1), outcome
        return json.loads(outcome.out, parse_constant=pytest.fail)

    return run


@pytest.fixture
def script():
    """Start the installed script; what it prints is text."""
    if not SCRIPT.exists():
        pytest.skip("the script kvtwin is not installed beside this Python")

    def start(*words, **settings):
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | settings
        return subprocess.Popen([str(SCRIPT), *map(str, words)], **settings)

    return start


@pytest.fixture
def write(tmp_path):
    """Write lines (objects as JSON) to a file and return its path."""

    def path(*lines, name="trace.jsonl", encoding="utf-8", newline="\n", end="\n"):
        file = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_bytes((newline.join(texts) + (end and newline)).encode(encoding))
        return file

    return path


@pytest.fixture
def native(write):
    """Write rows to a file in kvtwin's format; each is a dict over a request of 40 tokens known by length."""

    def path(*rows, name="trace.jsonl"):
        basis = {"prompt_tokens": 40, "output_tokens": 3}
        full = [{"id": f"r{i}", "arrival_ns": i * 10**9} | basis | row for i, row in enumerate(rows)]
        return write({"kvtwin_workload": 1}, *full, name=name)

    return path


@pytest.fixture
def mooncake(write):
    """Write a Mooncake trace of ``number`` requests that share their first 512 tokens."""

    def path(number=20, name="trace.jsonl"):
        return write(*(mooncake_row(index) for index in range(number)), name=name)

    return path


def mooncake_row(index=0, **changes):
    """A row of a Mooncake trace, ten a second."""
    return {"timestamp": 100 * index, "input_length": 1000, "output_length": 5, "hash_ids": [0, index + 1]} | changes


def tokens(*token_ids, **changes):
    """A row of `native` whose prompt is known."""
    return {"prompt_tokens": len(token_ids), "token_ids": list(token_ids)} | changes


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, with nothing of earlier sessions in it."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with chromedriver (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*BROWSER_FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()
