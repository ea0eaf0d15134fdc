"""Host memory beside the device's pool: its size in blocks, and the link that copies take."""

from __future__ import annotations

from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.host_memory import DEFAULT_SWAP_SPACE_GIB
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.sim.host_link import HostLink


def host_blocks(options: ReplayOptions, sizing: SizingResult, most_blocks: int) -> dict[str, int]:
    """The fields of the engine's configuration that count host blocks. UserError: a size that cannot be."""
    if options.swap_space is not None and options.preemption_mode != "swap":
        raise UserError("--swap-space: needs --preemption-mode swap")
    if options.kv_offloading_backend != "native":
        raise UserError(f"--kv-offloading-backend {options.kv_offloading_backend}: only native is modelled")
    if options.kv_offloading_size is not None and not sizing.inputs.enable_prefix_caching:
        raise UserError("--kv-offloading-size: needs --enable-prefix-caching")
    blocks = {"num_swap_blocks": 0, "num_offload_blocks": 0}
    if options.preemption_mode == "swap":
        gib = DEFAULT_SWAP_SPACE_GIB if options.swap_space is None else options.swap_space
        blocks["num_swap_blocks"] = _whole_blocks("--swap-space", gib, max(sizing.plan.block_bytes), most_blocks)
    if options.kv_offloading_size is not None:
        block_bytes = block_bytes_of_all_gpus(sizing)
        blocks["num_offload_blocks"] = _whole_blocks(
            "--kv-offloading-size", options.kv_offloading_size, block_bytes, most_blocks
        )
    return blocks


def host_link(options: ReplayOptions, sizing: SizingResult) -> HostLink | None:
    """The link that copies take time on; None where nothing is copied or nothing takes time.

    UserError: no GPU was given.
    """
    copies = options.preemption_mode == "swap" or options.kv_offloading_size is not None
    if not copies or options.step_time == "zero":
        return None
    gpu = sizing.inputs.gpu
    if gpu is None:
        raise UserError("--preemption-mode swap and --kv-offloading-size: copies take time, which needs --gpu")
    return HostLink(max(sizing.plan.block_bytes), gpu.pcie_bytes_per_s)


def block_bytes_of_all_gpus(sizing: SizingResult) -> int:
    """Bytes of one block on all GPUs together."""
    return sizing.inputs.tensor_parallel_size * sum(sizing.plan.block_bytes)


def _whole_blocks(flag: str, gib: float, block_bytes: int, most_blocks: int) -> int:
    num_blocks = int(gib * GIB) // block_bytes
    if num_blocks < 1:
        raise UserError(f"{flag}: {gib:g} GiB cannot hold a block of {block_bytes:,} bytes")
    if num_blocks > most_blocks:
        raise UserError(f"{flag}: {gib:g} GiB are {num_blocks:,} blocks; a replay holds at most {most_blocks:,}")
    return num_blocks
