"""A model on a device: its weights, its kernels, and the memory for its cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import EngineConfig
from gpu.attention import Attention
from gpu.cuda_graphs import graph_maker
from gpu.decoder import Decoder
from gpu.decoder_config import DecoderConfig
from gpu.decoder_weights import WeightSource, build_weights
from gpu.errors import DeviceError, OutOfDeviceMemory
from gpu.executor import DeviceExecutor
from gpu.layer_ops import LayerOps, TorchLayerOps
from gpu.paged_cache import PagedCache
from gpu.random_weights import RandomWeights
from gpu.torch_attention import TorchAttention

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
        if device.type == "cpu":
            _check_room(config)
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
        model = self.decoder.config
        cache = PagedCache(
            model.num_layers,
            config.num_blocks,
            config.block_size,
            model.num_kv_heads,
            model.head_dim,
            dtype=self.dtype,
            device=self.device,
            num_host_blocks=config.num_swap_blocks + config.num_offload_blocks,
        )
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


def _check_room(config: DecoderConfig) -> None:
    """Raises DeviceError where float32 weights need more than the host has: it would grant them, and fail later."""
    hidden, key_values = config.hidden_size, 2 * config.key_value_size
    of_layer = hidden * (2 * config.query_size + key_values + 3 * config.intermediate_size)
    of_embeddings = config.vocab_size * hidden * (1 if config.tied_embeddings else 2)
    weight_bytes = 4 * (config.num_layers * of_layer + of_embeddings)
    free_bytes = _free_host_bytes()
    if free_bytes is not None and weight_bytes > free_bytes:
        raise OutOfDeviceMemory(
            f"cpu: {config.name} has {weight_bytes:,} bytes of weights in float32, and {free_bytes:,} are free"
        )


def _free_host_bytes() -> int | None:
    """None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _backend(device: torch.device, config: DecoderConfig, dtype: torch.dtype) -> tuple[Attention, LayerOps]:
    """Raises DeviceError where the kernels do not support the model: before its weights are loaded."""
    if device.type == "cpu":
        return TorchAttention(), TorchLayerOps()
    # Only here: a CPU does without Triton.
    from gpu.kernels.launch_table import launch_constants
    from gpu.triton_attention import TritonAttention, arch_of
    from gpu.triton_layer_ops import TritonLayerOps

    arch = arch_of(device)
    launch_constants(arch, dtype, config.head_dim, config.num_query_heads, config.num_kv_heads, block_size=16)
    return TritonAttention(arch), TritonLayerOps()
