"""The engine, the executor and the kernels together: what requests say is what plain torch lets each say alone."""

from dataclasses import replace

import pytest
import torch

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.triton_attention import TritonAttention
from kvtwin.gpu.triton_layer_ops import TritonLayerOps
from tests.gpu.device_run import CPU, SMALL, TORCH, Arrival, DeviceRun, alone, random_weights

MODEL = replace(SMALL, head_dim=32)


@pytest.mark.slow
def test_requests_that_share_fork_and_are_preempted():
    weights = random_weights(MODEL, 0, CPU, torch.float32)
    triton = TritonAttention(90)
    shared = list(range(100, 120))
    arrivals = [
        Arrival(turn=0, prompt=[*shared, *range(10)], max_tokens=5, n=2),
        Arrival(turn=0, prompt=[*shared, 7], max_tokens=5),
        Arrival(turn=1, prompt=[5, 6], max_tokens=4),
    ]
    config = EngineConfig(
        num_blocks=6,
        block_size=16,
        max_model_len=40,
        max_num_batched_tokens=24,
        max_num_seqs=4,
        async_scheduling=True,
        watermark=0.0,
        parallel_sampling="fork",
    )
    run = DeviceRun(Decoder(MODEL, weights, triton, TritonLayerOps()), config, attention=triton)
    outputs = run.serve(arrivals)
    statistics = run.scheduler.statistics
    assert statistics.num_preemptions
    assert statistics.num_block_copies
    assert statistics.prefix_cache.hits
    reference = Decoder(MODEL, weights, TORCH)
    assert len(outputs) == 4
    for name, tokens in outputs.items():
        assert tokens == alone(reference, arrivals[int(name[0])])
