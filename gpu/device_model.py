"""A model on a device: its weights, its kernels, and the memory for its cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvtwin.engine.config import EngineConfig
from kvtwin.gpu.attention import Attention
from kvtwin.gpu.cuda_graphs import graph_maker
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_config import DecoderConfig
from kvtwin.gpu.decoder_weights import WeightSource, build_weights
from kvtwin.gpu.errors import DeviceError, memory_for
from kvtwin.gpu.executor import DeviceExecutor
from kvtwin.gpu.layer_ops import LayerOps, TorchLayerOps
from kvtwin.gpu.memory_profile import run_largest_step
from kvtwin.gpu.random_weights import RandomWeights
from kvtwin.gpu.torch_attention import TorchAttention

DEVICES = ("cpu", "cuda")


def open_device(name: str) -> torch.device:
    """The device, ready to compute: a CPU with one thread. DeviceError: there is none."""
    if name == "cpu":
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        raise DeviceError(f"{name}: torch {torch.__version__} finds no GPU")
    return torch.device(name)


@dataclass(frozen=True)
class DeviceModel:
    """A decoder whose weights are on a device, with what computes there: plain torch on a CPU, Triton on a GPU."""

    decoder: Decoder
    attention: Attention
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def load(
        cls, config: DecoderConfig, device: torch.device, *, source: WeightSource | None = None, seed: int = 0
    ) -> DeviceModel:
        """Weights from ``source``, else random ones. A CPU computes in float32, a GPU in the dtype of ``config``.

        DeviceError: the weights do not fit the device or the config.
        """
        dtype = getattr(torch, config.dtype) if device.type == "cuda" else torch.float32
        attention, layer_ops = _backend(device, config, dtype)
        weights = build_weights(config, source or RandomWeights(seed, device), device, dtype)
        return cls(Decoder(config, weights, attention, layer_ops), attention, device, dtype)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block's keys and values in all layers."""
        config = self.decoder.config
        return 2 * config.num_layers * block_size * config.key_value_size * self.dtype.itemsize

    @property
    def device_name(self) -> str:
        """What the device calls itself."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def executor(
        self, config: EngineConfig, *, temperature: float = 0.0, seed: int = 0, records: bool = False
    ) -> DeviceExecutor:
        """An executor with a cache of its own, as large as ``config`` says. DeviceError: it cannot be had."""
        with memory_for(f"an executor with {config.num_blocks:,} blocks on {self.device}"):
            self._warm_up(config)
            num_host_blocks = config.num_swap_blocks + config.num_offload_blocks
            cache = self.decoder.new_cache(config.num_blocks, config.block_size, num_host_blocks)
            return DeviceExecutor(
                self.decoder,
                self.attention,
                cache,
                config,
                temperature=temperature,
                seed=seed,
                records=records,
                make_graph=graph_maker() if self.device.type == "cuda" else None,
            )

    def _warm_up(self, config: EngineConfig) -> None:
        """On a GPU, run a step with many prompt tokens: else the first one that is timed waits for compilers."""
        if self.device.type == "cuda":
            num_sequences = max(1, min(config.max_running_requests, config.token_budget // 2))
            with torch.inference_mode():
                run_largest_step(self.decoder, config.token_budget, num_sequences, config.block_size)


def _backend(device: torch.device, config: DecoderConfig, dtype: torch.dtype) -> tuple[Attention, LayerOps]:
    """Raises DeviceError where the kernels do not support the model: before its weights are loaded."""
    if device.type == "cpu":
        return TorchAttention(), TorchLayerOps()
    # Only here: a CPU does without Triton.
    from kvtwin.gpu.kernels.launch_table import launch_constants
    from kvtwin.gpu.triton_attention import TritonAttention, arch_of
    from kvtwin.gpu.triton_layer_ops import TritonLayerOps

    arch = arch_of(device)
    launch_constants(arch, dtype, config.head_dim, config.num_query_heads, config.num_kv_heads, block_size=16)
    return TritonAttention(arch), TritonLayerOps()
