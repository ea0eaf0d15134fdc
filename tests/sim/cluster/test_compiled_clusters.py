"""Replicas that the compiled loop decides are those that the plain scheduler decides."""

import pytest

from kvtwin.engine.compiled.machine_code import machine_code
from tests.parts import slow_but
from tests.sim.cluster.compiled_clusters import Witness, difference

pytestmark = pytest.mark.skipif(machine_code() is None, reason="nothing is compiled here")


@pytest.mark.parametrize("first", slow_but([0], range(0, 120, 20)))
def test_random_clusters(first):
    for seed in range(first, first + 20):
        router, differing, _ = difference(seed)
        assert differing == [], (seed, router)


@pytest.mark.parametrize("first", slow_but([0], range(0, 60, 4)))
def test_routers_see_the_same(first):
    """KV events and first tokens at the instant of each output, metrics as they were read."""
    for seed in range(first, first + 4):
        _, differing, _ = difference(seed, Witness.name)
        assert differing == [], seed
