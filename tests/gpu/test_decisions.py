"""Check 1 on a device: a simulation that is fed with a real run's outputs arrives at what the device's tensors held."""

import pytest

from kvtwin.gpu.executor import DeviceExecutor
from kvtwin.gpu.torch_attention import TorchAttention
from kvtwin.sim.decided_steps import DecisionRecorder
from kvtwin.sim.decision_check import check_decisions
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord
from tests.gpu.device_run import crowd, small_decoder
from tests.parts import slow_but

MEMORIES = {
    "recompute": {},
    "swap": {"preemption_mode": "swap", "num_swap_blocks": 40},
    "offload": {"num_offload_blocks": 12},
}


def measure(seed, memory, sampling, spoil=lambda executor: None):
    """Run crowd number ``seed`` for real; the check of its decisions, and its executor."""
    decoder = small_decoder()
    config, arrivals = crowd(seed, memory=MEMORIES[memory], sampling=sampling)
    workload = [
        RequestRecord(
            request_id=str(number),
            arrival_ns=200_000 * arrival.turn,
            prompt_tokens=len(arrival.prompt),
            output_tokens=arrival.max_tokens,
            token_ids=arrival.prompt,
            n=arrival.n,
            priority=arrival.priority,
        )
        for number, arrival in sorted(enumerate(arrivals), key=lambda entry: entry[1].turn)
    ]
    num_host_blocks = config.num_swap_blocks + config.num_offload_blocks
    cache = decoder.new_cache(config.num_blocks, config.block_size, num_host_blocks)
    executor = DeviceExecutor(decoder, TorchAttention(), cache, config, records=True)
    spoil(executor)
    simulation = ServerSimulation(config, executor)
    decisions = DecisionRecorder(simulation.scheduler)
    simulation.observers.append(decisions)
    simulation.run(workload)
    check = check_decisions(
        lambda replayed: ServerSimulation(config, replayed), workload, decisions.steps, executor.executed
    )
    assert check.num_steps == len(executor.executed)
    return check, simulation.scheduler


@pytest.mark.parametrize("sampling", ["prefix", "fork"])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("seed", slow_but([0], range(4)))
def test_every_decision_of_a_real_run_is_found_again(seed, memory, sampling):
    check, scheduler = measure(seed, memory, sampling)
    assert check.differences == []
    assert check.num_steps > 20
    assert scheduler.statistics.num_preemptions + scheduler.kv_cache.pool.num_evictions > 0


def test_a_wrong_entry_in_the_devices_table_is_found():
    def spoil(executor):
        update = executor._rows.update

        def spoiled(step, seed):
            update(step, seed)
            if step.index == 9:
                row = executor._rows.block_tables[executor._rows[step.requests[0]]]
                row[0] = 1 if row[0] != 1 else 2

        executor._rows.update = spoiled

    check, _ = measure(0, "recompute", "prefix", spoil)
    assert (check.differences[0].step, check.differences[0].field) == (9, "block_tables[0]")
