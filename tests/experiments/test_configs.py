"""The sweeps in experiments/configs: each is understood, and replays a few requests without a failed point."""

from pathlib import Path

import pytest
import yaml

from kvtwin.experiments.options.trace import DEMO
from tests.parts import slow_but

FOLDER = Path(__file__).parents[2] / "experiments" / "configs"
SPECS = [path for path in sorted(FOLDER.glob("*.yaml")) if "description" in yaml.safe_load(path.read_text())]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_sweep_is_understood_as_it_is(kvtwin, path):
    outcome = kvtwin("sweep", path, "--dry-run")
    assert outcome.code == 0, outcome
    assert all(line.startswith("kvtwin replay ") for line in outcome.out.splitlines())


@pytest.mark.parametrize("path", slow_but(SPECS[:1], SPECS), ids=lambda path: path.stem)
def test_every_sweep_replays_a_few_requests(kvtwin, tmp_path, path):
    spec = yaml.safe_load(path.read_text())
    spec["options"] = spec.get("options", {}) | {"num-prompts": 4}
    small = tmp_path / path.name
    small.write_text(yaml.safe_dump(spec, sort_keys=False))
    outcome = kvtwin("sweep", small, DEMO, "--workers", 1)
    assert outcome.code == 0, outcome.out
    assert "* " not in outcome.out  # no failed point, no unknown column
