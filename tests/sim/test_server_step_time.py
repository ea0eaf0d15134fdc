"""What a server adds to the device's time: the links between GPUs, and the host."""

import pytest

from kvtwin.experiments.catalogue.models import load_model
from kvtwin.sim.interconnect import Interconnect, Traffic
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.server_step_time import HostTime, ServerStepTime
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.tabulated import Curve

DECODE = StepShape(10, 10, 0, 1000, 0, 10)
DEVICE = LinearStepTime({"step_ns": 1_000_000})
LLAMA = load_model("Llama-3.1-8B")
LINK = Interconnect("mine", 2, Curve([0, 1 << 30], [5_000, 5_000 + (1 << 30)]), "a test")
"""5 microseconds, and a nanosecond per byte."""


def test_two_all_reduces_per_layer_one_for_the_embedding_and_the_logits():
    expected = 65 * (5_000 + 10 * 4096 * 2) + (5_000 + 10 * 128_256 * 2) / 2
    assert Traffic(LLAMA, layers=LINK).duration_ns(10, 10) == round(expected)
    assert Traffic(LLAMA, layers=LINK).duration_ns(10, 0) == 65 * (5_000 + 10 * 4096 * 2)


def test_traffic_comes_on_top():
    traffic = Traffic(LLAMA, layers=LINK)
    model = ServerStepTime(DEVICE, traffic)
    assert model.duration_ns(DECODE) == 1_000_000 + traffic.duration_ns(10, 10)
    assert model.describe()["interconnect"] == "mine"


@pytest.mark.parametrize(
    ("step_ns", "is_async", "expected"),
    [
        (500_000, True, 1_000_000),
        (500_000, False, 1_000_000 + 500_000 + 10 * 20_000),
        (2_000_000, True, 2_000_000 + 10 * 20_000),
    ],
)
def test_the_host_works_beside_the_device_only_with_asynchronous_scheduling(step_ns, is_async, expected):
    model = ServerStepTime(DEVICE, None, HostTime(step_ns, 20_000), async_scheduling=is_async)
    assert model.duration_ns(DECODE) == expected


def test_an_empty_step_takes_no_time():
    model = ServerStepTime(DEVICE, Traffic(LLAMA, layers=LINK), HostTime())
    assert model.duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0
    assert model.name == "linear"
