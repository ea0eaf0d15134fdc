"""Runs on a :class:`~tests.sim.row_executor.RowExecutor`, with all that is kept of a measured run."""

import pytest
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.sim.decided_steps import DecisionRecorder
from kvtwin.sim.decision_check import check_decisions
from kvtwin.sim.requests import EOS_TOKEN
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord
from tests.sim.row_executor import RowExecutor


class Measured:
    """One run. ``stop_after`` steps its device breaks."""

    def __init__(self, config, workload, seed=0, *, ignore_eos=True, fault=None, stop_after=None, **server):
        self.workload = workload
        self.stopped = False
        self.simulation_with = lambda executor: ServerSimulation(
            config, executor, ignore_eos=ignore_eos, check=True, **server
        )
        device = RowExecutor(config, seed, eos=None if ignore_eos else EOS_TOKEN, fault=fault)
        if stop_after is not None:
            device = Breaking(device, stop_after)
        simulation = self.simulation_with(device)
        decisions = DecisionRecorder(simulation.scheduler)
        simulation.observers.append(decisions)
        try:
            simulation.run(workload)
        except MemoryError:
            self.stopped = True
            simulation.close()
        self.recorder = simulation.recorder
        self.decided, self.executed = decisions.steps, device.executed

    def check(self, decided=None, executed=None, **options):
        return check_decisions(
            self.simulation_with,
            self.workload,
            self.decided if decided is None else decided,
            self.executed if executed is None else executed,
            **{"ended_early": self.stopped} | options,
        )


class Breaking:
    """A device that is out of memory at its ``stop_after``-th step, when that is submitted or collected."""

    def __init__(self, device, stop_after):
        self._device, self._num_left, self._at_collect = device, stop_after, stop_after % 2
        self.executed = device.executed

    def submit(self, step):
        if not self._at_collect:
            self._count()
        return self._device.submit(step)

    def collect(self, ticket):
        if self._at_collect:
            self._count()
        return self._device.collect(ticket)

    def _count(self):
        self._num_left -= 1
        if self._num_left < 0:
            raise MemoryError("no more")


@st.composite
def configurations(draw):
    seats = draw(st.sampled_from([1, 2, 4, 8]))
    caching = draw(st.sampled_from([True, True, True, False]))
    config = {
        "num_blocks": draw(st.integers(4, 24)),
        "block_size": draw(st.integers(1, 5)),
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_seqs": seats,
        "max_num_batched_tokens": seats + draw(st.sampled_from([0, 3, 12, 64])),
        "enable_prefix_caching": caching,
        "parallel_sampling": draw(st.sampled_from(["prefix", "fork"])),
        "max_model_len": draw(st.sampled_from([24, 60])),
    }
    if draw(st.booleans()):
        config |= {"preemption_mode": "swap", "num_swap_blocks": draw(st.integers(1, 30))}
    if caching and draw(st.integers(0, 2)) == 0:
        config["num_offload_blocks"] = draw(st.integers(1, 12))
    return EngineConfig(**config)


@st.composite
def workloads(draw):
    tokens = st.integers(0, 1)
    document = draw(st.lists(tokens, min_size=1, max_size=30))
    records, arrival_ns, in_session = [], 0, 0
    for index in range(draw(st.integers(1, 9))):
        arrival_ns += draw(st.sampled_from([0, 0, 50, 900, 4_000]))
        prompt = document[: draw(st.integers(0, len(document)))] + draw(st.lists(tokens, min_size=1, max_size=8))
        session = draw(st.sampled_from([None, None, "s"]))
        in_session += session is not None
        records.append(
            RequestRecord(
                request_id=str(index),
                arrival_ns=arrival_ns,
                prompt_tokens=len(prompt),
                output_tokens=draw(st.integers(1, 14)),
                token_ids=prompt,
                n=draw(st.sampled_from([1, 1, 2, 3])),
                priority=draw(st.integers(0, 1)),
                session=session,
                think_time_ns=draw(st.sampled_from([0, 300])) if session and in_session > 1 else None,
            )
        )
    return records


settings_of_servers = st.fixed_dictionaries(
    {
        "ignore_eos": st.booleans(),
        "max_concurrency": st.sampled_from([None, None, 1, 3]),
        "num_warm_up_requests": st.sampled_from([0, 0, 2]),
        "seed": st.integers(0, 99),
    }
)


def crowd(*, n, spread_ns, output=24):
    """Requests that share a prefix and do not all fit."""
    shared = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]
    return [
        RequestRecord(
            request_id=f"r{index}",
            arrival_ns=spread_ns * index,
            prompt_tokens=len(prompt),
            output_tokens=output + index % 5,
            token_ids=prompt,
            n=n,
        )
        for index in range(9)
        for prompt in [shared + [index & 1, index & 2, index & 4, index] * (1 + index % 3) + [index] * (index % 4)]
    ]


TIGHT = {"num_blocks": 30, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16, "max_model_len": 100}
MODES = {
    "sync": {"async_scheduling": False},
    "async": {},
    "swap": {"preemption_mode": "swap", "num_swap_blocks": 60},
    "offload": {"num_offload_blocks": 10},
    "fork": {"parallel_sampling": "fork"},
    "fork-swap": {"parallel_sampling": "fork", "preemption_mode": "swap", "num_swap_blocks": 60},
}
modes = pytest.mark.parametrize("mode", MODES)


def measure(mode, *, spread_ns=120, **options):
    workload = crowd(n=2 if mode.startswith("fork") else 1, spread_ns=spread_ns)
    return Measured(EngineConfig(**TIGHT | MODES[mode]), workload, **options)
