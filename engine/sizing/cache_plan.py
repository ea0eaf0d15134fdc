"""From bytes to blocks: how many fit, and whether a request of the longest length fits (specification, section 13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtwin.engine.sizing.group_planning import CacheLayer, LayerGroup, NotEnoughMemoryError, SizingError, plan_groups
from kvtwin.engine.sizing.memory_budget import GIB

_SEE = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A planned KV cache: the groups, the blocks of every pipeline rank and what follows from them.

    ``num_blocks`` counts the null block. ``block_bytes`` and ``rank_blocks`` have one entry per pipeline
    rank; the rank with the fewest blocks decides and is ``limiting_rank``.
    """

    groups: tuple[LayerGroup, ...]
    num_blocks: int
    block_bytes: tuple[int, ...]
    rank_blocks: tuple[int, ...]
    max_model_len: int
    in_flight_tokens: int
    mamba_blocks: int

    @property
    def limiting_rank(self) -> int:
        """The pipeline rank that has room for the fewest blocks."""
        return self.rank_blocks.index(min(self.rank_blocks))

    def request_blocks(self, length_tokens: int) -> int:
        """Most blocks, of all groups together, that one request of this length holds at once."""
        return sum(self.group_request_blocks(group, length_tokens) for group in self.groups)

    def group_request_blocks(self, group: LayerGroup, length_tokens: int) -> int:
        """Most blocks of one group that one request of this length holds at once."""
        return group.request_blocks(length_tokens, self.in_flight_tokens, self.mamba_blocks)

    @property
    def smallest_request_share(self) -> float:
        """Share of the usable blocks that a request of up to one block's tokens takes: one block of every group."""
        return len(self.groups) / (self.num_blocks - 1)

    def concurrency_at(self, length_tokens: int) -> float:
        """Requests of this length that fill the pool. At max_model_len it is vLLM's "Maximum concurrency"."""
        return self.num_blocks / self.request_blocks(length_tokens)

    @property
    def capacity_tokens(self) -> int:
        """The tokens in vLLM's line "GPU KV cache size": concurrency at the maximum length, times it."""
        return int(self.concurrency_at(self.max_model_len) * self.max_model_len)

    @property
    def alignment_tokens(self) -> int:
        """Prefix hits are multiples of this many tokens: the LCM of the groups' block sizes."""
        return math.lcm(*(group.block_size for group in self.groups))

    def padding_share(self, group: LayerGroup) -> float:
        """Share of a block that ``group`` cannot use: padded pages, fewer layers than the largest group."""
        return 1.0 - group.data_bytes / sum(self.block_bytes)


def plan_cache(
    rank_layers: Sequence[Sequence[CacheLayer]],
    available_bytes: Sequence[int],
    *,
    max_model_len: int,
    in_flight_tokens: int,
    auto_fit_max_model_len: bool = False,
    num_gpu_blocks_override: int | None = None,
    disable_hybrid_kv_cache_manager: bool = False,
    mamba_blocks: int = 1,
) -> CachePlan:
    """Plan the cache of a server whose pipeline rank ``r`` has ``rank_layers[r]`` and ``available_bytes[r]``.

    ``in_flight_tokens`` is max_num_batched_tokens times the steps under way: as many as pipeline ranks, and
    one more with asynchronous scheduling. With
    ``auto_fit_max_model_len`` the length becomes the longest one, up to ``max_model_len``, that fits.
    SizingError, with vLLM's message: not even one request of the maximum length fits.
    """
    groups = plan_groups([x for layers in rank_layers for x in layers], disable_hybrid_kv_cache_manager)
    block_bytes = []
    first = 0
    for layers in rank_layers:
        block_bytes.append(max(group.bytes_on(first, first + len(layers)) for group in groups))
        first += len(layers)
    rank_blocks = [bytes_ // per_block for bytes_, per_block in zip(available_bytes, block_bytes, strict=True)]
    room_bytes = list(available_bytes)
    if num_gpu_blocks_override is not None:
        rank_blocks = [num_gpu_blocks_override] * len(rank_blocks)
        room_bytes = [num_gpu_blocks_override * per_block for per_block in block_bytes]

    def needed_blocks(length_tokens: int) -> int:
        return sum(group.request_blocks(length_tokens, in_flight_tokens, mamba_blocks) for group in groups)

    if auto_fit_max_model_len:
        for room, per_block in zip(room_bytes, block_bytes, strict=True):
            max_model_len = _longest_fit(needed_blocks, room // per_block - 1, max_model_len)
        if max_model_len == 0:
            raise NotEnoughMemoryError(
                "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single "
                "token. Try increasing `gpu_memory_utilization`."
            )
    for room, per_block in zip(room_bytes, block_bytes, strict=True):
        _check(needed_blocks, room - per_block, per_block, max_model_len)  # the null block serves nobody
    return CachePlan(
        groups=tuple(groups),
        num_blocks=min(rank_blocks),
        block_bytes=tuple(block_bytes),
        rank_blocks=tuple(rank_blocks),
        max_model_len=max_model_len,
        in_flight_tokens=in_flight_tokens,
        mamba_blocks=mamba_blocks,
    )


def check_state_blocks(plan: CachePlan, max_num_seqs: int) -> None:
    """vLLM's check before it captures CUDA graphs. SizingError, with its reason: more sequences than blocks.

    A captured batch of decodes has one block of states per sequence, and batches of up to ``max_num_seqs`` are
    captured. Every rank checks: also one without a layer of states has their groups.
    """
    if any(group.kind == "mamba" for group in plan.groups) and max_num_seqs > plan.num_blocks:
        raise SizingError(
            f"max_num_seqs ({max_num_seqs}) exceeds available Mamba cache blocks ({plan.num_blocks}). Each decode "
            "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs "
            f"to at most {plan.num_blocks} or increase gpu_memory_utilization. (--max-num-seqs {plan.num_blocks} "
            "starts; so does --enforce-eager)",
            suggested_max_num_seqs=plan.num_blocks,
        )


def format_gib(num_bytes: int) -> str:
    """Bytes as vLLM prints them: GiB, rounded to two places."""
    return f"{round(num_bytes / GIB, 2)}"


def _longest_fit(needed_blocks: Callable[[int], int], usable_blocks: int, longest_tokens: int) -> int:
    """The longest request, up to ``longest_tokens``, that needs at most ``usable_blocks``; 0 if none does."""
    fits, too_long = 0, longest_tokens + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if needed_blocks(middle) <= usable_blocks:
            fits = middle
        else:
            too_long = middle
    return fits


def _check(needed_blocks: Callable[[int], int], usable_bytes: int, block_bytes: int, max_model_len: int) -> None:
    """vLLM's start-up check of one rank. SizingError with its message."""
    if usable_bytes <= 0:
        raise NotEnoughMemoryError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, "
            f"despite its name). {_SEE}"
        )
    needed_bytes = needed_blocks(max_model_len) * block_bytes
    if needed_bytes <= usable_bytes:
        return
    longest = _longest_fit(needed_blocks, usable_bytes // block_bytes, max_model_len)
    hint = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    raise NotEnoughMemoryError(
        f"To serve at least one request with the model's max seq len ({max_model_len}), "
        f"({format_gib(needed_bytes)} GiB KV cache is needed, which is larger than the available KV cache "
        f"memory ({format_gib(usable_bytes)} GiB). {hint}Try increasing `gpu_memory_utilization` (which also "
        "controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. " + _SEE,
        suggested_max_model_len=longest or None,
    )
