"""What the real vLLM answers to the cases; runs under the oracle's own interpreter, with VLLM_ORACLE_SRC set.

    $ORACLE_PYTHON tests/parity/balancer/ask_vllm.py | gzip -n > tests/parity/balancer/answers.json.gz

The choice is that of the real client on a bare object. The coordinator runs its real loop; its clock, poller and
sockets are replaced, so that time passes as the case says.
"""

import json
import os
import sys
import types
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), os.environ["VLLM_ORACLE_SRC"]]
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
sys.modules["vllm.env_override"] = types.ModuleType("vllm.env_override")

import msgspec  # noqa: E402
import zmq  # noqa: E402
from cases import balancer_case, coordinator_case  # noqa: E402
from vllm.v1.engine import EngineCoreOutputs, coordinator  # noqa: E402
from vllm.v1.engine.core_client import DPLBAsyncMPClient  # noqa: E402
from vllm.v1.metrics.stats import SchedulerStats  # noqa: E402

NUM_BALANCER_CASES, NUM_COORDINATOR_CASES = 2000, 150


def balancer_answer(case):
    """The engine of every request, in order, then the front end's snapshot as it stands at the end."""
    client = object.__new__(DPLBAsyncMPClient)
    engines = case["engines"]
    client.client_count, client.client_index = case["clients"], case["client"]
    client.core_engines = [bytes([number]) for number in range(engines)]
    client.reqs_in_flight, client.streaming_reqs, client.engine_inflight = {}, set(), Counter()
    client.lb_engines = [[0, 0, 0.0] for _ in range(engines)]
    client.eng_start_index = (engines * client.client_index) // client.client_count
    chosen = []
    for kind, what, *rank in case["events"]:
        if kind == "arrives":
            request = types.SimpleNamespace(
                request_id=what, resumable=False, data_parallel_rank=rank[0], pooling_params=None
            )
            chosen.append(client.get_core_engine_for_request(request)[0])
        elif kind == "end":
            for name in what:
                client.engine_inflight[client.reqs_in_flight.pop(name)] -= 1
        else:
            client.lb_engines = [list(counts) for counts in what]
    return chosen, client.lb_engines


class CaseEndError(Exception):
    """The case is over."""


class World:
    """A clock, a poller and three sockets that follow a case."""

    START_US = 1_700_000_000_000_000

    def __init__(self, case):
        self.now_us, self.case, self.left, self.published = 0, case, list(case["messages"]), []
        self.buffer = None
        self.num_subscribed = 0

    def time(self):
        return (self.START_US + self.now_us) / 1_000_000

    def poll(self, timeout):
        due_us = self.now_us + 1000 * timeout
        if self.left and self.left[0][0] <= due_us:
            time_us, engine, counts, wave, step = self.left.pop(0)
            self.now_us = max(self.now_us, time_us)
            waiting, running, usage = counts
            stats = SchedulerStats(running, waiting, kv_cache_usage=usage, step_counter=step, current_wave=wave)
            self.buffer = msgspec.msgpack.encode(EngineCoreOutputs(engine_index=engine, scheduler_stats=stats))
            return [("output_back", zmq.POLLIN)]
        if due_us > self.case["end_us"]:
            raise CaseEndError
        self.now_us = due_us
        return []

    def send(self, buffer):
        counts, _, _ = msgspec.msgpack.decode(buffer)
        self.published.append([self.now_us, [list(each) for each in counts]])


class Socket:
    """One of the three."""

    def __init__(self, name, world):
        self.name, self.world = name, world

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        return False

    def __eq__(self, other):
        return other == self.name

    def __hash__(self):
        return hash(self.name)

    def recv(self):
        return b"\x01" if self.name == "publish_back" else self.world.buffer

    def send(self, buffer):
        if self.name == "publish_front":
            self.world.send(buffer)


def coordinator_answer(case):
    """Every publication: when, in microseconds, and what."""
    world = World(case)
    names = iter(["publish_front", "output_back", "publish_back"])
    coordinator.make_zmq_socket = lambda **_: Socket(next(names), world)
    coordinator.time = types.SimpleNamespace(time=world.time)
    poller = types.SimpleNamespace(register=lambda *_: None, poll=lambda timeout: world.poll(timeout))
    coordinator.zmq = types.SimpleNamespace(
        **{name: getattr(zmq, name) for name in ("XPUB", "PULL", "POLLIN", "LAST_ENDPOINT")}, Poller=lambda: poller
    )
    process = object.__new__(coordinator.DPCoordinatorProc)
    process.ctx = None
    process.engines = [coordinator.EngineState() for _ in range(case["engines"])]
    process.stats_update_interval_ms, process.enable_wave_coordination = 100, case["together"]
    try:
        process.process_input_socket("front", "output", "back")
    except CaseEndError:
        return world.published


if __name__ == "__main__":
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    answers = {
        "balancer": [
            "".join(map(str, balancer_answer(balancer_case(first + n))[0])) for n in range(NUM_BALANCER_CASES)
        ],
        "snapshots": [balancer_answer(balancer_case(first + n))[1] for n in range(200)],
        "coordinator": [coordinator_answer(coordinator_case(first + n)) for n in range(NUM_COORDINATOR_CASES)],
    }
    print(json.dumps(answers, separators=(",", ":")))
