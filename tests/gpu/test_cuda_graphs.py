"""Decode steps as graphs, with a stand-in that runs the recorded function again on its tensors."""

from typing import NamedTuple

import pytest
import torch

from kvtwin.gpu import cuda_graphs
from kvtwin.gpu.cuda_graphs import DecodeGraphs, padded_sizes
from kvtwin.gpu.executor import StepOutputs
from kvtwin.gpu.step_inputs import StepInputs
from tests.gpu.device_run import DeviceRun, crowd, small_decoder
from tests.parts import slow_but

CPU = torch.device("cpu")
DUMMY_ROW = 99


class Rerun:
    """A graph that is none. Like one, it knows the function's tensors from the capture, and no others."""

    replays = 0

    def capture(self, function):
        self._function = function
        self._outputs = function()
        for tensor in tensors(self._outputs):
            tensor.fill_(-7)  # nothing has run so far
        return self._outputs

    def replay(self):
        Rerun.replays += 1
        for kept, new in zip(tensors(self._outputs), tensors(self._function()), strict=True):
            kept.copy_(new)


def tensors(outputs):
    if isinstance(outputs, StepOutputs):
        return [outputs.sampled, outputs.logits, outputs.tokens.batch.block_tables, outputs.tokens.batch.slots]
    return list(outputs)


class Sums(NamedTuple):
    """What the small function of the tests below computes."""

    sums: object
    rows: object


def sums(inputs: StepInputs) -> Sums:
    assert inputs.total_tokens == inputs.num_decodes == len(inputs.rows) == len(inputs.order) == len(inputs.sampling)
    return Sums(inputs.rows * 1000 + inputs.num_computed * 10 + inputs.writes, inputs.rows.clone())


def decode_inputs(num_sequences, *, num_tokens=1, num_samples=None, base=0):
    numbers = torch.arange(num_sequences) + base
    return StepInputs(
        list(range(num_sequences)),
        rows=numbers,
        num_computed=numbers % 7,
        num_tokens=torch.full_like(numbers, num_tokens),
        writes=torch.ones_like(numbers),
        sampling=torch.arange(num_sequences if num_samples is None else num_samples),
        num_decodes=num_sequences if num_tokens == 1 else 0,
        total_tokens=num_sequences * num_tokens,
        max_query_tokens=num_tokens,
        max_context_tokens=8,
    )


def graphs_for(max_sequences, compute=sums):
    return DecodeGraphs(
        compute,
        max_sequences=max_sequences,
        max_context_tokens=8,
        dummy_row=DUMMY_ROW,
        device=CPU,
        make_graph=Rerun,
    )


@pytest.mark.parametrize(
    ("max_sequences", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (9, [1, 2, 4, 8, 16]), (256, list(cuda_graphs.BATCH_SIZES))],
)
def test_no_more_sizes_than_batches_need(max_sequences, sizes):
    assert padded_sizes(max_sequences) == sizes
    assert padded_sizes(1000) == list(cuda_graphs.BATCH_SIZES)


def test_the_largest_is_captured_first():
    captured = []
    graphs_for(24, lambda inputs: captured.append(len(inputs.rows)) or sums(inputs))
    assert captured == [24, 16, 8, 4, 2, 1]


@torch.inference_mode()
def test_a_padded_batch_gives_what_it_gives_unpadded_and_the_dummy_row_behind():
    graphs = graphs_for(33)
    held = {}
    for base in (0, 50):
        for num_sequences in range(1, 49):
            inputs = decode_inputs(num_sequences, base=base)
            outputs = graphs.run(inputs)
            assert outputs.sums[:num_sequences].tolist() == sums(inputs).sums.tolist()
            assert set(outputs.rows[num_sequences:].tolist()) <= {DUMMY_ROW}
            size = len(outputs.rows)
            assert size == min(each for each in cuda_graphs.BATCH_SIZES if each >= num_sequences)
            assert held.setdefault(size, outputs.sums.data_ptr()) == outputs.sums.data_ptr()


@pytest.mark.parametrize(
    "inputs",
    [decode_inputs(17), decode_inputs(4, num_tokens=2), decode_inputs(4, num_samples=3)],
    ids=["too many", "more than one token", "a sequence that delivers none"],
)
def test_other_steps_run_without_a_graph(inputs):
    assert graphs_for(16).run(inputs) is None


@pytest.mark.parametrize("seed", slow_but([0, 3], range(8)))
def test_an_executor_with_graphs_does_the_same(seed):
    """Tokens, slots and block tables, through preemptions, shared blocks and asynchronous steps."""
    decoder = small_decoder()
    config, arrivals = crowd(seed, sampling="fork" if seed % 4 > 1 else "prefix")
    plain, graphs = DeviceRun(decoder, config), DeviceRun(decoder, config, make_graph=Rerun)
    before = Rerun.replays
    assert graphs.serve(arrivals) == plain.serve(arrivals)
    padded = 0
    for with_graph, without in zip(graphs.executor.executed, plain.executor.executed, strict=True):
        assert with_graph.slots == without.slots
        assert with_graph.block_tables == without.block_tables
        assert with_graph.tokens == without.tokens
        padded += with_graph.num_padded_sequences > without.num_padded_sequences
    assert Rerun.replays > before
    assert padded
