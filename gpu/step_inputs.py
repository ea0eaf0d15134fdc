"""A step as tensors: which sequences run, in the order in which the kernels want them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvtwin.engine.executor import Step
from kvtwin.gpu.attention import AttentionBatch
from kvtwin.gpu.request_rows import RequestRows
from kvtwin.gpu.transfer import to_device


@dataclass(frozen=True, slots=True)
class StepInputs:
    """``S`` sequences, those with a single token first. Tensors are int64 on the device."""

    order: list[int]
    """Per sequence, its position among the step's requests."""
    rows: Tensor
    """``[S]``: rows of the requests."""
    num_computed: Tensor
    """``[S]``: tokens computed before."""
    num_tokens: Tensor
    """``[S]``: tokens to compute."""
    writes: Tensor
    """``[S]``: 1 if keys and values are stored, 0 if they are there already (a fork's)."""
    sampling: Tensor
    """``[N]``: sequences that deliver an output token."""
    num_decodes: int
    total_tokens: int
    max_query_tokens: int
    max_context_tokens: int


def step_inputs(step: Step, rows: RequestRows) -> StepInputs:
    """The inputs of a step with requests, whose news ``rows`` have taken in."""
    order = sorted(range(len(step.requests)), key=lambda index: step.num_tokens[index] != 1)
    forks = {admission.request for admission in step.admitted if admission.is_fork}
    num_tokens = [step.num_tokens[index] for index in order]
    num_computed = [step.num_computed_tokens[index] for index in order]
    packed = to_device(
        [
            [rows[step.requests[index]] for index in order],
            num_computed,
            num_tokens,
            [step.requests[index] not in forks for index in order],
        ],
        rows.tokens.device,
    )
    sampling = [sequence for sequence, index in enumerate(order) if step.samples[index]]
    return StepInputs(
        order,
        *packed,
        to_device(sampling, rows.tokens.device),
        num_decodes=num_tokens.count(1),
        total_tokens=sum(num_tokens),
        max_query_tokens=max(num_tokens),
        max_context_tokens=max(map(sum, zip(num_computed, num_tokens, strict=True))),
    )


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """The ``T`` tokens of a step, sequence after sequence."""

    token_ids: Tensor
    """``[T]`` int64."""
    positions: Tensor
    """``[T]`` int64, in their requests."""
    last: Tensor
    """``[S]`` int64: the last token of every sequence."""
    batch: AttentionBatch


def token_inputs(inputs: StepInputs, rows: RequestRows, block_size: int) -> TokenInputs:
    """What every token of a step is and where it goes: a function of tensors on the device alone."""
    device = rows.tokens.device
    ends = inputs.num_tokens.cumsum(0)
    starts = ends - inputs.num_tokens
    sequences = torch.arange(len(inputs.order), device=device)
    sequence_of = torch.repeat_interleave(sequences, inputs.num_tokens, output_size=inputs.total_tokens)
    positions = torch.arange(inputs.total_tokens, device=device) + (inputs.num_computed - starts)[sequence_of]
    row_of = inputs.rows[sequence_of]
    blocks = rows.block_tables[row_of, positions // block_size].long()
    slots = blocks * block_size + positions % block_size
    num_blocks = -(-inputs.max_context_tokens // block_size)
    return TokenInputs(
        rows.tokens[row_of, positions].long(),
        positions,
        ends - 1,
        AttentionBatch(
            slots=torch.where(inputs.writes[sequence_of] > 0, slots, -1),
            query_starts=torch.cat([starts, ends[-1:]]).int(),
            context_tokens=(inputs.num_computed + inputs.num_tokens).int(),
            block_tables=rows.block_tables[inputs.rows, :num_blocks],
            num_decodes=inputs.num_decodes,
            max_query_tokens=inputs.max_query_tokens,
            max_context_tokens=inputs.max_context_tokens,
        ),
    )
