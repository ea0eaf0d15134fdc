"""What the device used in a step, copied out of its tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.engine.executor import Step
from kvtwin.gpu.attention import AttentionBatch
from kvtwin.gpu.step_inputs import StepInputs
from kvtwin.gpu.transfer import to_host


@dataclass(frozen=True, slots=True)
class Evidence:
    """Copies in the host's memory, complete when the step is."""

    block_tables: Tensor
    slots: Tensor
    logits: Tensor
    """``[N]``: of the tokens that were sampled."""
    num_padded_sequences: int

    @classmethod
    def of(cls, batch: AttentionBatch, logits: Tensor) -> Evidence:
        """Have the copies made."""
        return cls(to_host(batch.block_tables), to_host(batch.slots), to_host(logits), batch.block_tables.shape[0])

    def executed(
        self, step: Step, inputs: StepInputs, tokens: list[Sequence[int]], block_size: int, times_ns: tuple[int, int]
    ) -> ExecutedStep:
        """The record of a step that is done."""
        tables: list[Sequence[int]] = [()] * len(tokens)
        slots: list[Sequence[int]] = [()] * len(tokens)
        logits: list[Sequence[float]] = [()] * len(tokens)
        all_slots, left_logits = self.slots.tolist(), self.logits.tolist()[::-1]
        first = 0
        for sequence, index in enumerate(inputs.order):
            num_tokens = step.num_tokens[index]
            context_tokens = step.num_computed_tokens[index] + num_tokens
            table = self.block_tables[sequence, : -(-context_tokens // block_size)]
            tables[index] = array("i", table.tolist())  # a tenth of a list
            slots[index] = all_slots[first : first + num_tokens]
            first += num_tokens
            if step.samples[index]:
                logits[index] = (left_logits.pop(),)
        duration_ns, host_ns = times_ns
        return ExecutedStep(
            index=step.index,
            request_ids=[request.request_id for request in step.requests],
            block_tables=tables,
            slots=slots,
            tokens=tokens,
            duration_ns=duration_ns,
            host_ns=host_ns,
            num_padded_sequences=self.num_padded_sequences,
            logits=logits,
        )
