"""Host memory beside the device's pool: its options, its size in blocks, its link, and what came of it."""

from __future__ import annotations

import argparse
from typing import Any

from kvtwin.engine.config import PREEMPTION_MODES
from kvtwin.engine.host_memory.host_pool import HostPool
from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number
from kvtwin.experiments.options.sizing import SizingResult
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.time_units import SECOND_NS

HOST_MEMORY_FLAGS = ("--preemption-mode", "--swap-space", "--kv-offloading-size", "--kv-offloading-backend")
DEFAULT_SWAP_SPACE_GIB = 4.0
"""Older vLLM's."""
_GIBIBYTES = Number(0, 1 << 20)


def add_host_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of vLLM, now or once."""
    add = parser.add_argument_group("host memory (vLLM's flags, now or once; see docs/host-memory.md)").add_argument
    add(
        "--preemption-mode",
        choices=PREEMPTION_MODES,
        default="recompute",
        help="what becomes of a preempted request's tokens; recompute is vLLM's",
    )
    add(
        "--swap-space",
        type=_GIBIBYTES,
        metavar="GIB",
        help=f"host memory per GPU for --preemption-mode swap (else {DEFAULT_SWAP_SPACE_GIB:g})",
    )
    add(
        "--kv-offloading-size",
        type=_GIBIBYTES,
        metavar="GIB",
        help="host memory, of all GPUs together, for cached blocks that the device evicts",
    )
    add("--kv-offloading-backend", choices=("native", "lmcache"), default="native", help="only native is modelled")


def host_blocks(args: argparse.Namespace, sizing: SizingResult, most_blocks: int) -> dict[str, int]:
    """The fields of the engine's configuration that count host blocks. UserError: a size that cannot be."""
    if args.swap_space is not None and args.preemption_mode != "swap":
        raise UserError("--swap-space: needs --preemption-mode swap")
    if args.kv_offloading_backend != "native":
        raise UserError(f"--kv-offloading-backend {args.kv_offloading_backend}: only native is modelled")
    if args.kv_offloading_size is not None and not sizing.inputs.enable_prefix_caching:
        raise UserError("--kv-offloading-size: needs --enable-prefix-caching")
    blocks = {"num_swap_blocks": 0, "num_offload_blocks": 0}
    if args.preemption_mode == "swap":
        gib = DEFAULT_SWAP_SPACE_GIB if args.swap_space is None else args.swap_space
        blocks["num_swap_blocks"] = _whole_blocks("--swap-space", gib, max(sizing.plan.block_bytes), most_blocks)
    if args.kv_offloading_size is not None:
        block_bytes = _block_bytes_of_all_gpus(sizing)
        blocks["num_offload_blocks"] = _whole_blocks(
            "--kv-offloading-size", args.kv_offloading_size, block_bytes, most_blocks
        )
    return blocks


def host_link(args: argparse.Namespace, sizing: SizingResult) -> HostLink | None:
    """The link that copies take time on; None where nothing is copied or nothing takes time.

    UserError: nobody said which GPU's.
    """
    copies = args.preemption_mode == "swap" or args.kv_offloading_size is not None
    if not copies or args.step_time == "zero":
        return None
    gpu = sizing.inputs.gpu
    if gpu is None:
        raise UserError("--preemption-mode swap and --kv-offloading-size: copies take time, which needs --gpu")
    return HostLink(max(sizing.plan.block_bytes), gpu.pcie_bytes_per_s)


def host_figures(recorder: Recorder, sizing: SizingResult, link: HostLink | None) -> dict[str, Any]:
    """What was copied, what the offload tier hit, and how long the copies took. Bytes are of all GPUs together."""
    cache, statistics = recorder.scheduler.kv_cache, recorder.scheduler.statistics
    block_bytes = _block_bytes_of_all_gpus(sizing)
    nothing = HostPool(0)
    swapped = cache.swap.pool if cache.swap else nothing
    offloaded = cache.offload.pool if cache.offload else nothing
    external = statistics.external_prefix_cache
    copied_blocks = as_array(recorder.steps.saved_blocks) + as_array(recorder.steps.loaded_blocks)
    copying_ns = sum(link.duration_ns(int(blocks)) for blocks in copied_blocks[copied_blocks > 0]) if link else 0
    return {
        "preemption_mode": "swap" if cache.swap else "recompute",
        "num_swap_blocks": swapped.num_blocks,
        "swapped_out_blocks": swapped.num_saved_blocks,
        "swapped_out_bytes": swapped.num_saved_blocks * block_bytes,
        "swapped_in_blocks": swapped.num_loaded_blocks,
        "swapped_in_bytes": swapped.num_loaded_blocks * block_bytes,
        "swap_fallbacks": cache.swap.num_fallbacks if cache.swap else 0,
        "num_offload_blocks": offloaded.num_blocks,
        "offloaded_blocks": offloaded.num_saved_blocks,
        "offloaded_bytes": offloaded.num_saved_blocks * block_bytes,
        "loaded_blocks": offloaded.num_loaded_blocks,
        "loaded_bytes": offloaded.num_loaded_blocks * block_bytes,
        "external_prefix_cache_queries": external.queries,
        "external_prefix_cache_hits": external.hits,
        "external_prefix_cache_hit_rate": external.hits / external.queries if external.queries else 0.0,
        "preempted_external_prefix_cache_queries": external.preempted_queries,
        "preempted_external_prefix_cache_hits": external.preempted_hits,
        "host_transfer_s": copying_ns / SECOND_NS,
    }


def host_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """Labels and values for the cache section, of what is switched on."""
    rows: list[tuple[str, object]] = []
    if summary["num_swap_blocks"]:
        rows += [
            ("Swapped out / in (blocks):", f"{summary['swapped_out_blocks']} / {summary['swapped_in_blocks']}"),
            ("Swapped out / in (GiB):", _gib(summary["swapped_out_bytes"], summary["swapped_in_bytes"])),
            ("  fallbacks to recomputation:", summary["swap_fallbacks"]),
        ]
    if summary["num_offload_blocks"]:
        hits, queries = summary["external_prefix_cache_hits"], summary["external_prefix_cache_queries"]
        rows += [
            ("Offload tier, hit / queried tokens:", f"{hits} / {queries}"),
            ("  hit rate, tokens (%):", f"{100 * summary['external_prefix_cache_hit_rate']:.2f}"),
            ("Offloaded / loaded (blocks):", f"{summary['offloaded_blocks']} / {summary['loaded_blocks']}"),
            ("Offloaded / loaded (GiB):", _gib(summary["offloaded_bytes"], summary["loaded_bytes"])),
        ]
    if rows:
        rows.append(("Copying to and from the host (s):", f"{summary['host_transfer_s']:.2f}"))
    return rows


def _gib(out_bytes: int, in_bytes: int) -> str:
    return f"{out_bytes / GIB:.2f} / {in_bytes / GIB:.2f}"


def _block_bytes_of_all_gpus(sizing: SizingResult) -> int:
    return sizing.inputs.tensor_parallel_size * sum(sizing.plan.block_bytes)


def _whole_blocks(flag: str, gib: float, block_bytes: int, most_blocks: int) -> int:
    num_blocks = int(gib * GIB) // block_bytes
    if num_blocks < 1:
        raise UserError(f"{flag}: {gib:g} GiB hold no block of {block_bytes:,} bytes")
    if num_blocks > most_blocks:
        raise UserError(f"{flag}: {gib:g} GiB are {num_blocks:,} blocks; a replay holds at most {most_blocks:,}")
    return num_blocks
