"""What a scheduler with a connector refuses."""

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.connectors.connected_scheduler import ConnectedScheduler
from kvtwin.engine.connectors.connector import Connector, Transfers
from kvtwin.engine.request import Request

FULL, WINDOW = CacheGroupSpec("full_attention", 16), CacheGroupSpec("sliding_window", 16, 40)


def connected(*groups):
    config = EngineConfig(num_blocks=20, cache_groups=groups, async_scheduling=False)
    return ConnectedScheduler(config, Connector())


def test_states_are_refused_by_name():
    with pytest.raises(ValueError, match="expected cache groups of attention, got mamba"):
        connected(FULL, CacheGroupSpec("mamba", 16))


def test_with_several_groups_a_bad_block_does_not_tell_whose_it_is():
    scheduler = connected(FULL, WINDOW)
    scheduler.add_request(Request("a", 20, max_tokens=2, content=TokenContent(scheduler.keys, range(20))))
    step = scheduler.schedule()
    scheduler.report(Transfers(invalid_blocks={1}))
    with pytest.raises(ValueError, match="expected failed requests where there are several cache groups"):
        scheduler.update(step, [[7]])
