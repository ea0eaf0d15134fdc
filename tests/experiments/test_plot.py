"""``kvtwin plot``: which pictures there are, that they can be opened, and what cannot be drawn."""

import html
import json
import re
import shlex

import matplotlib.image
import pytest
import yaml

from kvtwin.experiments.commands.isolation import BUNDLED
from kvtwin.experiments.pictures import run as run_pictures
from kvtwin.experiments.pictures import shares
from kvtwin.experiments.pictures.of_folder import pictures_of
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.sweeps.folder import read_sweep
from tests.experiments.conftest import SMALL_SERVER
from tests.parts import slow_but


@pytest.fixture
def run_folder(kvtwin, mooncake, tmp_path):
    assert kvtwin("replay", mooncake(), *SMALL_SERVER[:-2], "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


@pytest.fixture
def sweep_folder(kvtwin, mooncake, tmp_path):
    def make(**settings):
        spec = tmp_path / "spec.yaml"
        options = {"num-gpu-blocks-override": 400, "max-model-len": 2048}
        spec.write_text(yaml.safe_dump({"trace": str(mooncake()), "options": options} | settings))
        kvtwin("sweep", spec, "--out", tmp_path / "sweep")
        return tmp_path / "sweep"

    return make


def drawn(folder):
    """Names of the pictures in a folder, each of which must be one, in two forms."""
    for path in folder.glob("*.png"):
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 200
        assert len({tuple(pixel) for pixel in pixels.reshape(-1, 4)[::97]}) > 1, "nothing but background"
        assert path.with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    assert len(list(folder.iterdir())) == 2 * len(list(folder.glob("*.png")))
    return sorted(path.stem for path in folder.glob("*.png"))


def titles(folder):
    """What stands on every picture of a folder, title by picture."""
    found = {}
    for name, figure in pictures_of(folder).figures.items():
        found[name] = figure.get_suptitle().replace("-\n", "-").replace("\n", " ")
        assert figure.get_supxlabel().replace("\n", " ").startswith("kvtwin "), name
    return found


@pytest.mark.slow
def test_a_run_has_pictures_that_come_out_the_same(kvtwin, mooncake, run_folder, tmp_path):
    outcome = kvtwin("plot", run_folder)
    assert (outcome.code, drawn(run_folder / "plots")) == (0, ["latencies", "misses", "timeline"])
    first, *paths = outcome.out.splitlines()
    assert first == f"drawn from: kvtwin replay {mooncake()} --max-model-len=4096 --num-gpu-blocks-override=2000"
    assert len(paths) == 6
    for title in titles(run_folder).values():
        assert title.endswith(" trace.jsonl: meta-llama/Llama-3.1-8B, 2,000 blocks")
    assert first.partition(": ")[2] in (run_folder / "plots" / "latencies.svg").read_text()
    kvtwin("plot", run_folder, "--out", tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (run_folder / "plots" / path.name).read_bytes(), path.name


@pytest.mark.slow
def test_lines_and_tables_of_a_sweep(kvtwin, sweep_folder):
    folder = sweep_folder(axes={"block-size": [16, 32], "num-gpu-blocks-override": [300, 400]})
    assert kvtwin("plot", folder, "--metrics", "mean_ttft_ms").code == 0
    assert drawn(folder / "plots") == [
        "block-size-by-num-gpu-blocks-override",
        "over-block-size",
        "over-num-gpu-blocks-override",
    ]


@pytest.mark.slow
def test_failed_points_and_options_without_numbers_are_left_out(kvtwin, sweep_folder):
    folder = sweep_folder(axes={"num-gpu-blocks-override": [20, 300, 400], "enable-prefix-caching": [True, False]})
    assert kvtwin("plot", folder).code == 0
    assert drawn(folder / "plots") == ["misses", "over-num-gpu-blocks-override"]
    about = "trace.jsonl; meta-llama/Llama-3.1-8B; 2 of 6 points failed and are left out"
    assert titles(folder) == {
        "over-num-gpu-blocks-override": f"Hit rate and preemptions over num-gpu-blocks-override {about}",
        "misses": f"Hits and sources of misses by enable-prefix-caching, num-gpu-blocks-override {about}",
    }


@pytest.mark.slow
def test_what_memory_is_used_for_by_allocator_and_block_size(kvtwin, sweep_folder):
    """All at once on a pool that holds few: requests wait, and every part of the memory is drawn that there is."""
    folder = sweep_folder(
        options={"num-gpu-blocks-override": 130, "max-model-len": 1040, "request-rate": "inf"},
        points=[{"allocator": "contiguous-max"}, {"block-size": 16}],
    )
    assert kvtwin("plot", folder).code == 0
    assert drawn(folder / "plots") == ["memory", "misses"]
    _, rows = read_sweep(folder)
    nothing_waited = [dict.fromkeys(row) for row in rows]
    (axis,) = shares.memory([*rows, *nothing_waited], ["a", "b", "c", "d"]).axes
    assert [text.get_text() for text in axis.texts] == ["none waited"] * 2
    (axis,) = shares.memory(rows, ["max", "16"]).axes
    heights = {container.get_label(): [bar.get_height() for bar in container] for container in axis.containers}
    assert [sum(bars) for bars in zip(*heights.values(), strict=True)] == pytest.approx([100, 100])
    assert heights["holds a token"][1] > heights["holds a token"][0] > 0


def test_misses_of_one_run_are_a_bar_with_their_shares(run_folder):
    summary = Run(run_folder).summary
    figure = shares.misses([summary], ["trace"])
    (legend,) = figure.legends
    told = [text.get_text() for text in legend.get_texts()]
    hits, queries = summary["prefix_cache_hits"], summary["prefix_cache_queries"]
    assert told[0] == f"hit: {100 * hits / queries:.2f}% ({hits:,})"
    assert sum(float(re.search(r"([\d.]+)%", text)[1]) for text in told) == pytest.approx(100, abs=0.02)
    inside = [text.get_text() for text in figure.axes[0].texts]
    assert f"{100 * hits / queries:.1f}%" in inside
    (axis,) = shares.misses([{}], ["lengths alone"]).axes
    assert [text.get_text() for text in axis.texts] == ["prompts are known by length only"]


def test_latencies_of_nothing_say_so(kvtwin, native, tmp_path):
    refused = native({"lora": "adapter"}, {"output_tokens": 1})
    assert kvtwin("replay", refused, *SMALL_SERVER, "--out", tmp_path / "one-token").code == 0
    first, per_token, _ = run_pictures.latencies(Run(tmp_path / "one-token")).axes
    assert [text.get_text() for text in per_token.texts] == ["no request had two tokens"]
    assert [text.get_text().split()[0] for text in first.texts] == ["p50", "p90", "p99"]


SMALL_ISOLATION = yaml.safe_load(BUNDLED.read_text())
SMALL_ISOLATION["attack"] |= {"probes": 3, "background_requests_per_s": [0], "block_sizes": [16]}


@pytest.fixture(
    params=slow_but(["curve", "isolation"], ["curve", "limit", "isolation"]),
)
def result(request, kvtwin, mooncake, tmp_path):
    """The folder of a result, and the command that made it."""
    (tmp_path / "isolation.yaml").write_text(
        yaml.safe_dump(SMALL_ISOLATION | {"workload": {"trace": str(mooncake(4)), "tenants": [2]}})
    )
    limits = ("--precision", 1, "--workers", 1, "--goodput", "ttft:0.001", "--hit-rate-within", 0.5)
    words = {
        "curve": (mooncake(), "--max-model-len", 4096),
        "limit": (mooncake(), *SMALL_SERVER[:-2], *limits),
        "isolation": (tmp_path / "isolation.yaml",),
    }[request.param]
    printed = kvtwin(request.param, *words, "--out", tmp_path / "result")
    assert printed.code == 0, printed
    return request.param, tmp_path / "result", printed.out


def test_results_without_runs_have_pictures_and_a_page(kvtwin, result):
    command, folder, printed = result
    outcome = kvtwin("plot", folder)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith(f"drawn from: kvtwin {command} ")
    names = {"limit": ["limits", "over-rate"]}.get(command, [command])
    assert drawn(folder / "plots") == names
    for title in titles(folder).values():
        assert " trace.jsonl: " in title
    assert kvtwin("report", folder).code == 0
    page = (folder / "report.html").read_text()
    assert printed.splitlines()[0] in html.unescape(page)
    assert page.count("<svg") == len(names)
    kept = json.loads((folder / "result.json").read_text())
    assert kept["text"] == printed.rstrip("\n")
    kvtwin(command, *shlex.split(kept["command_line"])[2:]).complains("--out", "already exists")
    (folder / "result.json").write_text("{}")
    kvtwin("plot", folder).complains("result.json: not the result of a command")


def test_long_runs_are_drawn_as_bands(monkeypatch, run_folder):
    monkeypatch.setattr(run_pictures, "_MOST_POINTS", 10)
    run = Run(run_folder)
    assert len(run.steps["end_ns"]) > 10
    (line,) = run_pictures.timeline(run).axes[0].lines
    assert len(line.get_xdata()) == 5


@pytest.mark.slow
def test_what_cannot_be_drawn(kvtwin, run_folder, sweep_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    kvtwin("plot", tmp_path / "empty").complains("empty: not the folder of a run", "config.yaml")
    kvtwin("plot", tmp_path / "absent").complains("absent")
    (tmp_path / "both" / "measured").mkdir(parents=True)
    kvtwin("plot", tmp_path / "both").complains(f"of a validation: name {tmp_path / 'both' / 'measured'}")
    kvtwin("plot", run_folder, "--metrics", "x").complains("--metrics", "for sweeps")
    kvtwin("plot", run_folder, "--out", tmp_path / "trace.jsonl").complains("trace.jsonl")
    folder = sweep_folder(axes={"enable-prefix-caching": [True, False]})
    kvtwin("plot", folder, "--metrics", "mean_ttft_ms").complains("nothing to draw")
    kvtwin("plot", folder, "--metrics", "no_such_key").complains("--metrics: no_such_key")
    (folder / "results.parquet").unlink()
    kvtwin("plot", folder).complains("has not ended", "--resume")
    (run_folder / "steps.parquet").write_text("junk")
    kvtwin("plot", run_folder).complains("steps.parquet: not a table")
    (run_folder / "config.yaml").write_text("[]")
    kvtwin("plot", run_folder).complains("config.yaml: not the configuration")
