"""How requests get their memory: in pages, as vLLM does it, or in one piece, as servers did before."""

from __future__ import annotations

import argparse
from dataclasses import replace

from kvtwin.engine.config import ALLOCATORS, EngineConfig
from kvtwin.experiments.errors import UserError


def add_allocator_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--allocator``, which vLLM does not have."""
    parser.add_argument_group("allocator").add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default="paged",
        help="contiguous-*: one range per request for all its tokens, without prefix caching (docs/waste.md)",
    )


def with_allocator(config: EngineConfig, args: argparse.Namespace) -> EngineConfig:
    """The configuration of the same memory under ``--allocator``. UserError: an option that it cannot have."""
    if args.allocator == "paged":
        return config
    if [group.kind for group in config.group_specs] != ["full_attention"]:
        raise UserError(f"--allocator {args.allocator}: only for models of one cache group, of full attention")
    if args.enable_prefix_caching:
        raise UserError(f"--enable-prefix-caching: {args.allocator} shares nothing between requests")
    if args.allocator != "contiguous-max" and not args.ignore_eos:
        raise UserError(f"--allocator {args.allocator}: needs to know where outputs end, so not --no-ignore-eos")
    return replace(
        config,
        allocator=args.allocator,
        num_blocks=(config.num_blocks - 1) * config.block_size + 1,
        block_size=1,
        cache_groups=(),
        enable_prefix_caching=False,
    )


def allocator_lines(config: EngineConfig) -> list[str]:
    """What a heading says of the allocator: nothing of vLLM's own."""
    if config.allocator == "paged":
        return []
    return [f"memory  {config.allocator}: a range per request, of {config.num_blocks - 1:,} slots; no prefix caching"]
