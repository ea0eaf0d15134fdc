"""What the real vLLM does in the cases; runs under the oracle's own interpreter, with VLLM_ORACLE_SRC set.

    $ORACLE_PYTHON tests/parity/lock_step/ask_vllm.py | gzip -n > tests/parity/lock_step/answers.json.gz

The loop of the engine core is vLLM's: its waves, its counting of steps, its agreement, what it publishes and when it
runs a batch without requests. Faked are the scheduler, which gives every request one token a step, the queues, and the
devices, whose forward passes begin when the last rank has joined. Ranks are threads of which one runs at a time, on a
clock that is set.
"""

import json
import os
import sys
import threading
import types
from collections import deque
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), os.environ["VLLM_ORACLE_SRC"]]
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
sys.modules["vllm.env_override"] = types.ModuleType("vllm.env_override")

from cases import lock_step_case  # noqa: E402
from vllm.v1.core.sched.interface import PauseState  # noqa: E402
from vllm.v1.engine import EngineCoreRequestType  # noqa: E402
from vllm.v1.engine import core as engine_core  # noqa: E402
from vllm.v1.engine.core import DPEngineCoreProc, EngineShutdownState  # noqa: E402

NUM_CASES = 200


class CaseEndError(BaseException):
    """The case is over."""


class World:
    """The clock, the requests, the devices, and whose turn it is."""

    def __init__(self, case):
        self.case, self.now_ns, self.device_free_ns = case, 0, 0
        self.left = deque(case["requests"])
        self.is_over = False
        self.turn = threading.Semaphore(0)
        self.ranks = [Rank(self, number) for number in range(case["ranks"])]
        self.passes = []
        """Of each forward pass: who joined, and when it starts and ends."""
        self.asked, self.answers = {}, []
        self.current_wave, self.engines_running = 0, False

    def run(self):
        for rank in self.ranks:
            rank.thread.start()
            self.turn.acquire()
        while True:
            ready = [(at, rank.number) for rank in self.ranks if (at := rank.ready()) is not None]
            at = max(min(ready)[0], self.now_ns) if ready else None
            if self.left and (at is None or self.left[0][0] <= at):
                time_ns, number, tokens = self.left.popleft()
                self.now_ns = time_ns
                self.ranks[number].arrives(len(self.left), tokens)
                continue
            if at is None:
                break
            self.now_ns = at
            self.resume(self.ranks[min(ready)[1]])
        self.is_over = True
        for rank in self.ranks:
            self.resume(rank)
            rank.thread.join()
        return [rank.log for rank in self.ranks]

    def resume(self, rank):
        rank.turn.release()
        self.turn.acquire()

    def join(self, number, place, duration_ns):
        """A rank joins forward pass ``place``."""
        if place == len(self.passes):
            self.passes.append([0, 0, None, None])
        joined = self.passes[place]
        joined[0] += 1
        joined[1] = max(joined[1], duration_ns)
        if joined[0] == len(self.ranks):
            joined[2] = max(self.now_ns, self.device_free_ns)
            joined[3] = self.device_free_ns = joined[2] + joined[1]
            joined.append(self.now_ns)
        return joined

    def agree(self, number, is_unfinished):
        place = self.ranks[number].num_agreements
        self.ranks[number].num_agreements += 1
        if place == len(self.answers):
            self.answers.append([0, False])
        answer = self.answers[place]
        answer[0] += 1
        answer[1] |= is_unfinished
        self.ranks[number].wait(lambda: self.now_ns if answer[0] == len(self.ranks) else None)
        return answer[1]

    def told(self, number, outputs):
        """An engine tells the coordinator something, who wakes others at once."""
        if outputs.wave_complete is not None and self.current_wave <= outputs.wave_complete:
            self.current_wave, self.engines_running = outputs.wave_complete + 1, False
        wave = outputs.start_wave
        is_news = wave is not None and (
            wave > self.current_wave or (wave == self.current_wave and not self.engines_running)
        )
        if is_news:
            self.current_wave, self.engines_running = wave, True
            for rank in self.ranks:
                rank.queue.append((EngineCoreRequestType.START_DP_WAVE, (wave, number)))


class Rank:
    """One engine core: vLLM's loop in a thread of its own."""

    def __init__(self, world, number):
        self.world, self.number, self.log = world, number, []
        self.queue, self.turn = deque(), threading.Semaphore(0)
        self.num_passes = self.num_agreements = 0
        self.ready = lambda: None
        self.thread = threading.Thread(target=self.main)
        self.core = self.make_core()

    def make_core(self):
        case, core = self.world.case, object.__new__(DPEngineCoreProc)
        core.step_counter = core.current_wave = 0
        core.dp_rank = core.engine_index = self.number
        core.dp_group = None
        core.prefill_schedule_interval, core.dp_sync_interval = 1, case["sync_interval"]
        core.pending_pause = core.ignore_start_dp_wave = core.engines_running = False
        core.has_coordinator = core.publish_dp_lb_stats = True
        core.enable_fault_tolerance = core.reject_new_requests = False
        core.last_counts = (0, 0)
        core.eep_scaling_state = None
        core.shutdown_state = EngineShutdownState.RUNNING
        core.process_input_queue_block = True
        core._idle_state_callbacks = []
        core.is_mm_encoder_only = core.is_pooling_model = core.check_for_draft_tokens = False
        core.async_scheduling = case["is_async"]
        core.batch_queue_size = 2 if case["is_async"] else 1
        core.batch_queue = deque(maxlen=2) if case["is_async"] else None
        core.step_fn = core.step_with_batch_queue if case["is_async"] else core.step
        core._process_aborts_queue = lambda: None
        core._attach_iteration_details = core._attach_weight_version = lambda *_: None
        core.capture_iteration_details = core.log_error_detail = lambda *_: Nothing()
        core.scheduler = Scheduler(self)
        core.model_executor = self
        core.is_sleeping = False
        core.input_queue = types.SimpleNamespace(
            empty=lambda: not self.queue, get_nowait=self.queue.popleft, get=self.get_input
        )
        core.aborts_queue = types.SimpleNamespace(mutex=threading.Lock(), queue=deque())
        core.output_queue = types.SimpleNamespace(put_nowait=self.put_output)
        core.vllm_config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(
                sync_dp_state=lambda _, has_unfinished, pending_pause: (
                    self.world.agree(self.number, has_unfinished),
                    False,
                )
            )
        )
        return core

    is_sleeping = False

    def main(self):
        try:
            self.wait(lambda: 0)
            self.core.run_busy_loop()
        except CaseEndError:
            self.world.turn.release()

    def wait(self, ready):
        """Let others run until the time that ``ready`` tells, if it tells one."""
        self.ready = ready
        self.world.turn.release()
        self.turn.acquire()
        if self.world.is_over:
            raise CaseEndError

    def arrives(self, name, tokens):
        request = types.SimpleNamespace(
            request_id=str(name),
            pooling_params=None,
            kv_transfer_params=None,
            ec_transfer_params=None,
            abort_immediately=False,
            tokens=tokens,
            left=tokens,
        )
        self.queue.append((EngineCoreRequestType.ADD, (request, 0)))

    def get_input(self, block):
        self.wait(lambda: self.world.now_ns if self.queue else None)
        return self.queue.popleft()

    def put_output(self, item):
        outputs = item[1]
        stats = getattr(outputs, "scheduler_stats", None)
        if stats is not None:
            counts = [stats.num_waiting_reqs, stats.num_running_reqs]
            self.log.append(["told", self.world.now_ns, counts, stats.current_wave, stats.step_counter])
        if hasattr(outputs, "start_wave"):
            self.world.told(self.number, outputs)

    # ------------------------------------------------------------ the device

    def join(self, kind, duration_ns):
        self.log.append([kind, self.world.now_ns, self.core.current_wave, self.core.step_counter])
        self.num_passes += 1
        return self.world.join(self.number, self.num_passes - 1, duration_ns)

    def execute_model(self, step, non_block):
        if not step.total_num_scheduled_tokens:
            return types.SimpleNamespace(result=lambda: "nothing", done=lambda: True)
        case = self.world.case
        joined = self.join("step", case["step_ns"] + case["token_ns"] * step.total_num_scheduled_tokens)

        def result():
            self.wait(lambda: joined[3])
            return "outputs"

        self.future = types.SimpleNamespace(result=result, done=lambda: False)
        return self.future

    def sample_tokens(self, grammar, non_block):
        return self.future

    def execute_dummy_batch(self):
        joined = self.join("idle", self.world.case["idle_pass_ns"])
        self.wait(lambda: joined[4] if len(joined) > 4 else None)


class Nothing:
    """A context that does nothing."""

    def __enter__(self):
        return None

    def __exit__(self, *failure):
        return False


class Scheduler:
    """Gives every request a token a step, as long as there are seats."""

    pause_state = PauseState.UNPAUSED

    def __init__(self, rank):
        self.rank, self.waiting, self.running, self.finished = rank, [], [], False

    def add_request(self, request):
        self.waiting.append(request)

    def get_kv_connector(self):
        return None

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def has_requests(self):
        return self.has_unfinished_requests() or self.finished

    def get_request_counts(self):
        return len(self.running), len(self.waiting)

    def get_kv_cache_usage(self):
        return 0.0

    def get_grammar_bitmask(self, step):
        return None

    def schedule(self, throttle_prefills):
        self.finished = False
        while self.waiting and len(self.running) < self.rank.world.case["seats"]:
            self.running.append(self.waiting.pop(0))
        step = [request for request in self.running if request.left]
        for request in step:
            request.left -= 1
        return types.SimpleNamespace(
            total_num_scheduled_tokens=len(step), requests=step, pending_structured_output_tokens=False
        )

    def update_from_output(self, step, output):
        for request in step.requests:
            request.tokens -= 1
            if not request.tokens:
                self.running.remove(request)
                self.finished = True
                self.rank.log.append(["ends", self.rank.world.now_ns, request.request_id])
        return {}


if __name__ == "__main__":
    engine_core.time = types.SimpleNamespace(sleep=lambda _: None)
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    answers = [World(lock_step_case(first + number)).run() for number in range(NUM_CASES)]
    print(json.dumps(answers, separators=(",", ":")))
