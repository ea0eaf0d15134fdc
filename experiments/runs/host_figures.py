"""What was copied between the device and the host: figures of a run, and their lines."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.host_memory.host_pool import HostPool
from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.experiments.display.shares import percent_text
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.experiments.setup.host_memory import block_bytes_of_all_gpus
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.time_units import SECOND_NS


def host_figures(recorder: Recorder, sizing: SizingResult, link: HostLink | None) -> dict[str, Any]:
    """What was copied, what the offload tier hit, and how long the copies took. Bytes are of all GPUs together."""
    cache, statistics = recorder.scheduler.kv_cache, recorder.scheduler.statistics
    block_bytes = block_bytes_of_all_gpus(sizing)
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
            ("  recomputed instead (preemptions):", summary["swap_fallbacks"]),
        ]
    if summary["num_offload_blocks"]:
        hits, queries = summary["external_prefix_cache_hits"], summary["external_prefix_cache_queries"]
        rows += [
            ("Offload tier, hit / queried tokens:", f"{hits} / {queries}"),
            ("  hit rate, tokens (%):", percent_text(summary["external_prefix_cache_hit_rate"])),
            ("Offloaded / loaded (blocks):", f"{summary['offloaded_blocks']} / {summary['loaded_blocks']}"),
            ("Offloaded / loaded (GiB):", _gib(summary["offloaded_bytes"], summary["loaded_bytes"])),
        ]
    if rows:
        rows.append(("Copying to and from the host (s):", f"{summary['host_transfer_s']:.2f}"))
    return rows


def _gib(out_bytes: int, in_bytes: int) -> str:
    return f"{out_bytes / GIB:.2f} / {in_bytes / GIB:.2f}"
