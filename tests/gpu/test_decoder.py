"""The decoder over a paged cache, against the same decoder without one."""

from dataclasses import replace

import pytest
import torch

from kvtwin.gpu.attention import AttentionBatch
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_config import TINY
from kvtwin.gpu.errors import OutOfDeviceMemory
from kvtwin.gpu.rope import Rope
from kvtwin.gpu.torch_attention import TorchAttention
from tests.gpu.device_run import random_weights

CPU = torch.device("cpu")
BLOCK_SIZE = 16
SMALL = replace(TINY, num_layers=2, vocab_size=512)
CONFIGS = {
    "llama": SMALL,
    "qwen3": replace(SMALL, qk_norm=True, head_dim=64, tied_embeddings=True),
    "qwen2": replace(SMALL, qkv_bias=True),
    "all biases, scaled rope": replace(SMALL, qkv_bias=True, output_bias=True, rope=Rope(500000.0, (1.0, 8.0) * 8)),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def random_decoder(config, seed=0):
    return Decoder(config, random_weights(config, seed, CPU, torch.float32), TorchAttention())


def random_tokens(config, *lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(config.vocab_size, (length,), generator=generator) for length in lengths]


class PagedRun:
    """Sequences computed piece by piece in one cache, whose blocks are handed out in a shuffled order."""

    def __init__(self, decoder, sequences):
        self.decoder = decoder
        self.sequences = sequences
        self.computed = [0] * len(sequences)
        widths = [-(-len(tokens) // BLOCK_SIZE) for tokens in sequences]
        blocks = 1 + torch.randperm(sum(widths), generator=torch.Generator().manual_seed(2))
        self.tables = [part.tolist() for part in blocks.split(widths)]
        self.cache = decoder.new_cache(1 + len(blocks), BLOCK_SIZE)
        self.cache.poison(blocks.tolist())

    def step(self, pieces):
        """Compute so many tokens of each sequence; those with one come first. Their logits, per sequence."""
        order = sorted((index for index in pieces), key=lambda index: pieces[index] > 1)
        ids, positions, slots, starts, contexts = [], [], [], [0], []
        for index in order:
            span = range(self.computed[index], self.computed[index] + pieces[index])
            self.computed[index] = span.stop
            ids.append(self.sequences[index][span.start : span.stop])
            positions += span
            slots += [self.tables[index][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in span]
            starts.append(starts[-1] + len(span))
            contexts.append(span.stop)
        width = max(len(table) for table in self.tables)
        batch = AttentionBatch(
            slots=torch.tensor(slots),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_tokens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor(
                [self.tables[index] + [0] * (width - len(self.tables[index])) for index in order], dtype=torch.int32
            ),
            num_decodes=sum(pieces[index] == 1 for index in order),
            max_query_tokens=max(pieces.values()),
            max_context_tokens=max(contexts),
        )
        hidden = self.decoder.forward(torch.cat(ids), torch.tensor(positions), self.cache, batch)
        logits = self.decoder.logits(hidden)
        return {index: logits[starts[row] : starts[row + 1]] for row, index in enumerate(order)}

    def run(self, chunk):
        """All sequences side by side, at most ``chunk`` tokens each per step; their logits."""
        parts = [[] for _ in self.sequences]
        while True:
            left = [len(tokens) - done for tokens, done in zip(self.sequences, self.computed, strict=True)]
            pieces = {index: min(chunk, count) for index, count in enumerate(left) if count}
            if not pieces:
                return [torch.cat(each) for each in parts]
            for index, logits in self.step(pieces).items():
                parts[index].append(logits)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_a_paged_cache_changes_nothing(name, chunk):
    """One token, a few, or all at once per step, three sequences side by side: as each alone and without a cache."""
    decoder = random_decoder(CONFIGS[name])
    sequences = random_tokens(CONFIGS[name], 50, 33, 1)
    for tokens, logits in zip(sequences, PagedRun(decoder, sequences).run(chunk), strict=True):
        assert torch.allclose(logits, decoder.dense_logits(tokens), atol=1e-4)


def test_a_wrong_block_is_seen():
    """The control of what stands above: with one wrong entry in a block table most tokens behind it are others."""
    decoder = random_decoder(TINY)
    (tokens,) = random_tokens(TINY, 200)
    run = PagedRun(decoder, [tokens])
    dense = decoder.dense_logits(tokens)
    run.step({0: 160})
    run.tables[0][2] = run.tables[0][5]
    logits = run.step({0: 40})[0]
    assert (logits.argmax(-1) != dense[160:].argmax(-1)).float().mean() > 0.5


@pytest.mark.parametrize("name", CONFIGS)
def test_random_weights_make_outputs_depend_on_the_context(name):
    """One other token at the start moves at least a fifth of the greedy tokens of a context of 256."""
    decoder = random_decoder(CONFIGS[name])
    (tokens,) = random_tokens(CONFIGS[name], 256)
    before = decoder.dense_logits(tokens).argmax(-1)
    tokens[10] += 1 - 2 * (tokens[10] > 0).long()
    assert (decoder.dense_logits(tokens).argmax(-1) != before)[20:].float().mean() > 0.2


@pytest.mark.parametrize("name", CONFIGS)
def test_matrices_are_counted(name):
    config = CONFIGS[name]
    weights = random_weights(config, 0, CPU, torch.float32)
    matrices = [weights.embedding] + [weights.head] * (not config.tied_embeddings)
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
    assert config.num_matrix_values == sum(matrix.numel() for matrix in matrices)


def test_weights_that_the_host_has_no_room_for_are_one_line():
    huge = replace(TINY, name="huge", hidden_size=2**20, intermediate_size=2**22, num_layers=1000)
    with pytest.raises(OutOfDeviceMemory, match=r"^huge: random weights: [\d,]+ bytes are needed, and [\d,]+ are"):
        random_weights(huge, 0, CPU, torch.float32)


def test_random_weights_are_the_same_for_a_seed():
    first, again, other = (random_weights(SMALL, seed, CPU, torch.float32) for seed in (3, 3, 4))
    assert torch.equal(first.layers[1].gate_up, again.layers[1].gate_up)
    assert not torch.equal(first.layers[1].gate_up, other.layers[1].gate_up)
    assert not torch.equal(first.layers[0].gate_up, first.layers[1].gate_up)


def test_matrices_of_the_tiny_model_are_not_too_small_to_notice():
    """Below a standard deviation of 0.06 a broken cache could go unseen."""
    weights = random_weights(TINY, 0, CPU, torch.float32)
    matrices = [weights.embedding, weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.gate_up, layer.down]
    assert min(matrix.std().item() for matrix in matrices) > 0.0595
    assert all(weights.embedding.data_ptr() != matrix.data_ptr() for matrix in matrices[1:])
