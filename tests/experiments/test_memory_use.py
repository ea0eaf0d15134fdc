"""The shares of the KV memory against a count of single slots, and what they come to on small servers."""

import pytest

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.settings import ALLOCATORS
from kvtwin.experiments.runs.memory_use import MEMORY_PARTS, memory_shares
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord


class SlotCounter(Recorder):
    """A recorder that also writes down, per step, every slot of every running request."""

    def __init__(self, scheduler):
        super().__init__(scheduler)
        self.seen = []

    def schedule(self, step, scheduled_ns):
        super().schedule(step, scheduled_ns)
        cache, block_size = self.scheduler.kv_cache, self.scheduler.config.block_size
        written, held, ranges = set(), set(), []
        for request in self.scheduler.running:
            slots = [block * block_size + offset for block in request.block_tables[0] for offset in range(block_size)]
            written |= set(slots[: request.num_computed_tokens])
            held |= set(slots)
            if self.scheduler.config.allocator != "paged":
                ranges.append((request, *cache.ranges[request]))
        self.seen.append((written, held, ranges, step.admission_stop.name in ("MEMORY", "PREEMPTION")))

    def counts(self, num_slots):
        """Slots of each part, per step."""
        for written, held, ranges, lacks_memory in self.seen:
            reserved = internal = 0
            for request, _, size in ranges:
                # Ended by now: what it computed is all that it ever wrote.
                internal += size - request.num_computed_tokens
            if ranges:
                reserved = sum(size for _, _, size in ranges) - len(written) - internal
            else:
                internal = len(held - written)
            free = num_slots - len(written) - reserved - internal
            yield [len(written), reserved, internal, free * lacks_memory, free * (not lacks_memory)]


def records():
    """Thirty requests, most of which share one of three prefixes; outputs of many lengths."""
    for index in range(30):
        length = 5 + 7 * (index % 5)
        prompt = [*[index % 3] * length, *range(100 * index, 100 * index + index % 4)]
        yield RequestRecord(
            request_id=str(index),
            arrival_ns=index * 2_000_000,
            prompt_tokens=len(prompt),
            output_tokens=1 + 11 * index % 23,
            token_ids=tuple(prompt),
            source=f"row {index}",
        )


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_shares_are_those_of_single_slots(allocator, ignore_eos, asynchronous):
    paged = allocator == "paged"
    config = EngineConfig(
        num_blocks=41 if paged else 161,
        block_size=4 if paged else 1,
        allocator=allocator,
        enable_prefix_caching=paged,
        max_model_len=64,
        max_num_batched_tokens=32,
        max_num_seqs=16,
        async_scheduling=asynchronous,
    )
    executor = SimulatedExecutor(LinearStepTime({"step_ns": 1_000_000}))
    simulation = ServerSimulation(config, executor, ignore_eos=ignore_eos, check=True)
    counter = simulation.recorder = SlotCounter(simulation.scheduler)
    simulation.run(list(records()))
    assert set(counter.requests.finish_reason) <= {"length", "stop"}
    shares = memory_shares(counter, config)
    assert list(shares) == list(MEMORY_PARTS)
    assert [list(step) for step in zip(*shares.values(), strict=True)] == [
        [count / 160 for count in step] for step in counter.counts(160)
    ]
    assert (shares["external"] > 0).any()
    assert (shares["reserved"] > 0).any() != paged
    assert (shares["internal"] > 0).any() == (allocator != "contiguous-oracle" or not ignore_eos)
