"""``kvtwin plot``: which pictures there are, that they can be opened, and what cannot be drawn."""

import matplotlib.image
import pytest
import yaml

from kvtwin.experiments.pictures import run as run_pictures
from kvtwin.experiments.pictures import shares
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.sweeps.folder import read_sweep
from tests.experiments.conftest import SMALL_SERVER


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


def test_a_run_has_pictures_that_come_out_the_same(kvtwin, run_folder, tmp_path):
    outcome = kvtwin("plot", run_folder)
    assert (outcome.code, drawn(run_folder / "plots")) == (0, ["latencies", "misses", "timeline"])
    assert len(outcome.out.splitlines()) == 6
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


def test_what_memory_is_used_for_by_allocator_and_block_size(kvtwin, sweep_folder):
    """All at once on a pool that holds few: requests wait, and every part of the memory is drawn that there is."""
    folder = sweep_folder(
        options={"num-gpu-blocks-override": 130, "max-model-len": 1040, "request-rate": "inf"},
        points=[{"allocator": "contiguous-max"}, {"block-size": 16}],
    )
    assert kvtwin("plot", folder).code == 0
    assert drawn(folder / "plots") == ["memory", "misses"]
    _, rows = read_sweep(folder)
    (axis,) = shares.memory(rows, ["max", "16"]).axes
    heights = {container.get_label(): [bar.get_height() for bar in container] for container in axis.containers}
    assert [sum(bars) for bars in zip(*heights.values(), strict=True)] == pytest.approx([100, 100])
    assert heights["holds a token"][1] > heights["holds a token"][0] > 0


def test_long_runs_are_drawn_as_bands(monkeypatch, run_folder):
    monkeypatch.setattr(run_pictures, "_MOST_POINTS", 10)
    run = Run(run_folder)
    assert len(run.steps["end_ns"]) > 10
    (line,) = run_pictures.timeline(run).axes[0].lines
    assert len(line.get_xdata()) == 5


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
