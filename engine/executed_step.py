"""What a device really did in a step: the evidence that an executor leaves, beside what it was asked to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """One step, as read back from the executor's own tensors. The sequences are parallel, in the step's order.

    Every step that was collected has one, also a step without requests.
    """

    index: int
    """The step's own (:attr:`kvtwin.engine.executor.Step.index`)."""
    request_ids: Sequence[str]
    block_tables: Sequence[Sequence[int]]
    """Per request, the block ids that the device looked up, up to that of the step's last token."""
    slots: Sequence[Sequence[int]]
    """Per request and token of the step, the slot it was written to (block times block size, plus offset); -1: not."""
    tokens: Sequence[Sequence[int]]
    """Per request, the output tokens that the step delivered."""
    duration_ns: int
    """How long the device was busy with it: what its :class:`~kvtwin.engine.executor.StepResult` says."""
    host_ns: int
    """How long the host needed to prepare and start it."""
    num_padded_sequences: int
    """Sequences that the device computed, those included that only fill up a batch."""
    logits: Sequence[Sequence[float]] = ()
    """Per request, the logits of these tokens; empty where there are none to tell."""
