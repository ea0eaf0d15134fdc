"""Step times that are wrong on purpose."""

import pytest

from kvtwin.experiments.options.reading import read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replay import replay
from kvtwin.sim import serving
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.varied import VariedStepTime

BASE = LinearStepTime({"step_ns": 1_000_000})
STEP = StepShape(1, 1, 0, 10, 0, 1)


def draws(model, number=4000):
    return [model.duration_ns(STEP) for _ in range(number)]


def test_a_bias_is_the_same_in_every_step():
    assert set(draws(VariedStepTime(BASE, 1.2))) == {1_200_000}


def test_noise_is_even_and_of_its_seed():
    found = draws(VariedStepTime(BASE, noise=0.05))
    assert min(found) < 951_000
    assert max(found) > 1_049_000
    assert sum(found) / len(found) == pytest.approx(1_000_000, rel=0.002)
    assert found == draws(VariedStepTime(BASE, noise=0.05)) != draws(VariedStepTime(BASE, noise=0.05, seed=1))


def test_each_of_several_servers_draws_for_itself():
    model = VariedStepTime(BASE, noise=0.05)
    first, second = model.for_one_server(), model.for_one_server()
    assert draws(first) == draws(second) == draws(model)


@pytest.mark.parametrize(("bias", "noise"), [(0, 0), (-1, 0), (1, 1), (1, -0.1)])
def test_what_would_turn_time_back_is_refused(bias, noise):
    with pytest.raises(ValueError, match="expected a bias above 0 and a noise from 0 to 1"):
        VariedStepTime(BASE, bias, noise)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"step_time": "linear", "data_parallel_size": 2}])
def test_the_compiled_loop_draws_the_same(options, monkeypatch):
    given = {"trace": "demo", "num_prompts": 40, "max_model_len": 4096, "num_gpu_blocks_override": 300, **options}
    read = read_options(ReplayOptions, given, "replay")
    files = []
    for code in (serving.machine_code, lambda: None):
        monkeypatch.setattr(serving, "machine_code", code)
        replayed = replay(read, change=lambda base: VariedStepTime(base, 1.1, 0.05))
        files.append({name: content for name, content in replayed.files().items() if not name.endswith("machine.json")})
    assert files[0] == files[1]
