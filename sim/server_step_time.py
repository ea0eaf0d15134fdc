"""How long a step takes on a server: its GPUs' work, what they send each other, and the host's work."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvtwin.sim.interconnect import Traffic
from kvtwin.sim.step_costs import HasStepCosts, StepCosts
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.step_time import StepTimeModel


class HostTime(NamedTuple):
    """Time of the host per step: scheduling it, and taking in what it returns.

    The defaults are those of vLLM 0.33's own scheduler, ``schedule`` and ``update_from_output``, in one thread of a
    shared virtual machine with two cores: 0.11 ms with one running request, 1.06 ms with 32. Preparing inputs,
    detokenising and streaming are not in it.
    """

    step_ns: int = 80_000
    sequence_ns: int = 31_000
    """For each request that runs."""


class ServerStepTime:
    """The device's time, the interconnect's after it, and the host's.

    With asynchronous scheduling the host works on one step while the device computes another: a step takes the longer
    of both. Without, it takes both, one after the other.
    """

    def __init__(
        self,
        device: StepTimeModel,
        traffic: Traffic | None = None,
        host: HostTime | None = None,
        *,
        async_scheduling: bool = True,
    ) -> None:
        """Without ``traffic`` one GPU computes alone; without ``host`` the host takes no time."""
        self.device = device
        self._traffic = traffic
        self._host = host
        self._is_overlapped = async_scheduling

    @property
    def name(self) -> str:
        """The device's model."""
        return self.device.name

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        if not shape.num_sequences:
            return 0
        duration_ns = self.device.duration_ns(shape)
        if self._traffic:
            duration_ns += self._traffic.duration_ns(shape.total_tokens, shape.sampled_tokens)
        if self._host:
            host_ns = self._host.step_ns + self._host.sequence_ns * shape.num_sequences
            return max(duration_ns, host_ns) if self._is_overlapped else duration_ns + host_ns
        return duration_ns

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts | None:
        """The device's numbers, and behind them the host's and what is sent, by tokens and by sampled tokens."""
        costs = self.device.step_costs(most_sequences, most_tokens) if isinstance(self.device, HasStepCosts) else None
        if costs is None:
            return None
        numbers = array("d", costs.numbers)
        host = self._host or HostTime(0, 0)
        numbers.extend([host.step_ns, host.sequence_ns, float(self._is_overlapped), float(most_tokens + 1)])
        numbers.extend([1.0, 1.0, 0.0])  # not adjusted
        traffic = self._traffic
        numbers.extend(traffic.tokens_ns(tokens) if traffic else 0.0 for tokens in range(most_tokens + 1))
        numbers.extend(traffic.sampled_ns(sampled) if traffic else 0.0 for sampled in range(most_sequences + 1))
        return costs._replace(numbers=numbers, server=len(costs.numbers))

    def describe(self) -> dict[str, float | int | str]:
        """The parameters of all parts."""
        parts = self.device.describe()
        if self._traffic:
            parts |= self._traffic.describe()
        if self._host:
            parts |= {"host_step_ns": self._host.step_ns, "host_sequence_ns": self._host.sequence_ns}
            parts["host_time"] = "overlapped" if self._is_overlapped else "not overlapped"
        return parts
