"""The executor that really does it: a model on a device computes what the engine decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.engine.executor import Executor, Step, StepResult
from kvtwin.gpu.attention import Attention
from kvtwin.gpu.cuda_graphs import DecodeGraphs, Graph
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.errors import DeviceError, memory_for
from kvtwin.gpu.evidence import Evidence
from kvtwin.gpu.paged_cache import PagedCache
from kvtwin.gpu.poison import Poison
from kvtwin.gpu.request_rows import RequestRows
from kvtwin.gpu.sampling import sample
from kvtwin.gpu.step_inputs import StepInputs, TokenInputs, step_inputs, token_inputs
from kvtwin.gpu.step_timer import StepTimer
from kvtwin.gpu.transfer import to_host


class StepOutputs(NamedTuple):
    """What the device computes in a step."""

    tokens: TokenInputs
    sampled: Tensor
    """``[N]`` int64: output tokens."""
    logits: Tensor
    """``[N]``: theirs."""


@dataclass(frozen=True, slots=True)
class SubmittedStep:
    """A step under way; the tensors are in the host's memory, and complete once ``timer`` has waited."""

    step: Step
    timer: StepTimer
    inputs: StepInputs | None = None
    """None: the step has no requests."""
    sampled: Tensor | None = None
    evidence: Evidence | None = None


class DeviceExecutor(Executor[SubmittedStep]):
    """Runs steps on the device of ``cache``, in the order in which they are submitted; on a CPU at once.

    Nothing of the allocator is repeated here: block tables are what the steps say, and slots follow from them on the
    device. A step's input is looked up on the device too, so it may be the output of a step that still runs.

    With ``records``, ``executed`` keeps what each collected step did.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        cache: PagedCache,
        config: EngineConfig,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        records: bool = False,
        make_graph: Callable[[], Graph] | None = None,
    ) -> None:
        """Sampling is greedy at ``temperature`` 0, else seeded. With ``make_graph``, decode steps run as graphs, which
        are captured here. DeviceError: ``config`` asks for what is not done.
        """
        check_executable(config)
        self.executed: list[ExecutedStep] = []
        self._decoder = decoder
        self._attention = attention
        self._cache = cache
        self.temperature = temperature
        self.seed = seed
        self._records = records
        self._rows = RequestRows(config.max_running_requests, config.max_model_len, cache.block_size, cache.device)
        self._poison: Poison | None = None
        self._graphs: DecodeGraphs[StepOutputs] | None = None
        if make_graph:
            self._graphs = DecodeGraphs(
                self._compute,
                max_sequences=config.max_running_requests,
                max_context_tokens=config.max_model_len,
                dummy_row=self._rows.dummy_row,
                device=cache.device,
                make_graph=make_graph,
            )

    def poison(self, pool: BlockPool) -> None:
        """From now on, fill with NaN what nobody may read, by the books of the engine's ``pool``."""
        self._poison = Poison(self._cache, pool)

    def submit(self, step: Step) -> SubmittedStep:
        """Have ``step`` done. Raises OutOfDeviceMemory."""
        with memory_for(f"step {step.index}"), torch.inference_mode():
            return self._submit(step)

    def collect(self, ticket: SubmittedStep) -> StepResult:
        """Wait for a step; its duration and output tokens."""
        times_ns = ticket.timer.wait()
        step, inputs = ticket.step, ticket.inputs
        tokens: list[Sequence[int]] = [()] * len(step.requests)
        if inputs and ticket.sampled is not None:
            sampling = [index for index in inputs.order if step.samples[index]]
            for index, token in zip(sampling, ticket.sampled.tolist(), strict=True):
                tokens[index] = (token,)
            if ticket.evidence:
                self.executed.append(ticket.evidence.executed(step, inputs, tokens, self._cache.block_size, times_ns))
        elif self._records:  # block copies at most, or word of requests that ended
            self.executed.append(ExecutedStep(step.index, (), (), (), (), *times_ns, num_padded_sequences=0))
        return StepResult(times_ns[0], tokens)

    def _submit(self, step: Step) -> SubmittedStep:
        timer = StepTimer(self._cache.device)
        self._rows.update(step, self.seed)
        inputs = step_inputs(step, self._rows) if step.requests else None
        timer.start_device()
        self._move_blocks(step)
        outputs = self._run(inputs) if inputs else None
        timer.end_device()
        sampled = to_host(outputs.sampled) if outputs else None
        evidence = Evidence.of(outputs.tokens.batch, outputs.logits) if outputs and self._records else None
        timer.end_host()
        return SubmittedStep(step, timer, inputs, sampled, evidence)

    def _move_blocks(self, step: Step) -> None:
        """What :class:`~kvtwin.engine.executor.Step` wants done before anything is written."""
        self._cache.save(step.saves)
        if self._poison:
            self._poison.fill_handed_out(step)
        self._cache.load(step.loads)
        self._cache.copy(step.copies, self._attention)
        if self._poison:
            self._poison.fill_free()

    def _run(self, inputs: StepInputs) -> StepOutputs:
        outputs = self._graphs.run(inputs) if self._graphs else None
        if outputs is None:
            return self._compute(inputs)
        num_sequences = len(inputs.order)
        return outputs._replace(sampled=outputs.sampled[:num_sequences], logits=outputs.logits[:num_sequences])

    def _compute(self, inputs: StepInputs) -> StepOutputs:
        """The model's part: a function of tensors on the device, which it changes."""
        rows = self._rows
        tokens = token_inputs(inputs, rows, self._cache.block_size)
        hidden = self._decoder.forward(tokens.token_ids, tokens.positions, self._cache, tokens.batch)
        last = tokens.last[inputs.sampling]
        logits = self._decoder.logits(hidden[last])
        sampling_rows, positions = inputs.rows[inputs.sampling], tokens.positions[last] + 1
        sampled = sample(logits, self.temperature, rows.seeds[sampling_rows], positions)
        rows.tokens[sampling_rows, positions] = sampled.int()
        return StepOutputs(tokens, sampled, logits.gather(1, sampled[:, None])[:, 0])


def check_executable(config: EngineConfig) -> None:
    """Raises DeviceError: what ``config`` asks for is decided by the engine and not done by a device."""
    kinds = [spec.kind for spec in config.group_specs]
    if kinds != ["full_attention"]:
        raise DeviceError(f"cache groups: expected one of full attention, got {', '.join(kinds)}")
    if config.speculation:
        raise DeviceError(f"speculative decoding: expected none, got {config.speculation.method}")
    if config.allocator != "paged":
        raise DeviceError(f"allocator: expected paged, got {config.allocator}")
