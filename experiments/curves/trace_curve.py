"""The curve that options ask for: of a trace, with the caches of GPUs marked on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.experiments.curves.caches import Replicas
from kvtwin.experiments.curves.facts import Mark, curve_facts
from kvtwin.experiments.curves.simulated_points import simulated_points
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.new import check_new
from kvtwin.experiments.options.curve import CurveOptions
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.setup.memory_share import memory_share, with_memory_share
from kvtwin.experiments.setup.replicas import check_router, has_replicas, router_of
from kvtwin.experiments.setup.servers import setup_of
from kvtwin.sim.cluster.destinations import Destinations
from kvtwin.sim.cluster.router import Knows
from kvtwin.sim.cluster.routers.registry import ROUTERS
from kvtwin.workloads.workload import Workload

_BLOCK_TOKENS: Mapping[str, Callable[[CurveOptions], int]] = {
    "vllm": lambda options: options.block_size,
    "sglang": lambda options: options.page_size,
    "trtllm": lambda options: options.tokens_per_block,
}
_LONGEST: Mapping[str, Callable[[CurveOptions], int | None]] = {
    "vllm": lambda options: options.max_model_len,
    "sglang": lambda options: options.context_length,
    "trtllm": lambda options: options.max_seq_len,
}


def curve_of_options(options: CurveOptions, workload: Workload, *, with_line: bool = False) -> dict[str, Any]:
    """The curve of ``workload`` as plain data. UserError: options that cannot be.

    ``with_line`` adds points close enough for a picture, as ``--plot`` and ``--out`` do.
    """
    replicas = _replicas(options)
    marks, max_model_len = _marks(replace(options, data_parallel_size=1))
    _check_picture(options)
    return curve_facts(
        workload,
        _BLOCK_TOKENS[options.server](options),
        max_model_len,
        list(options.at),
        marks,
        options.sample,
        replicas=replicas,
        with_line=with_line or options.plot is not None or options.out is not None,
    )


def _replicas(options: CurveOptions) -> Replicas | None:
    """The replicas and their router, if there are any. UserError: a router without them, or one that sees servers."""
    if options.replicas is not None:
        raise UserError("--replicas: a curve has one size for all replicas; give --data-parallel-size")
    if options.executor is not None:
        raise UserError("--executor: only for `kvtwin replay`")
    check_router(options)
    if not has_replicas(options):
        return None

    def destinations() -> Destinations:
        return Destinations(router_of(options, seed=0), options.data_parallel_size)

    try:
        destinations()
    except ValueError as error:
        names = ", ".join(name for name, router in ROUTERS.items() if router.knows < Knows.SERVERS)
        raise UserError(
            f"--router {options.router}: {error}, which no curve knows; use one of {names}, or `kvtwin replay`"
        ) from None
    return Replicas(options.data_parallel_size, options.router, destinations)


def _check_picture(options: CurveOptions) -> None:
    """UserError, before anything is computed: a picture that cannot be drawn."""
    if options.runs and not options.plot:
        raise UserError("--runs: needs --plot")
    if options.plot:
        if options.plot.suffix.lower() not in (".png", ".svg"):
            raise UserError(f"--plot {options.plot}: expected a file that ends in .png or .svg")
        check_new(options.plot, "--plot")


def draw_curve(options: CurveOptions, facts: dict[str, Any]) -> None:
    """The picture that ``--plot`` asks for, if it does. UserError: it cannot be written."""
    if not options.plot:
        return
    simulated = {str(folder): simulated_points(folder, facts) for folder in options.runs}
    from kvtwin.experiments.pictures.curve import CURVE, capacity_curve, curve_heading
    from kvtwin.experiments.pictures.figure import save_as

    try:
        heading = curve_heading(facts, command_line("curve", options))
        save_as(heading.on(capacity_curve(facts, simulated), CURVE), options.plot)
    except OSError as error:
        raise UserError(f"--plot {options.plot}: {error.strerror or error}") from None


def _marks(options: CurveOptions) -> tuple[list[Mark], int]:
    """The cache of every GPU and memory fraction asked for, and the longest request that any of them takes."""
    fractions = options.memory_fractions
    if not options.model:
        if options.gpu or fractions:
            raise UserError("--gpu and --memory-fractions: need --model")
        longest = _LONGEST[options.server](options)
        return [], longest if longest and longest > 0 else sys.maxsize
    marks, longest = [], 0
    for gpu in options.gpu.split(",") if options.gpu else [None]:
        for fraction in fractions or (memory_share(options),):
            setup = setup_of(options)
            inputs = setup.inputs(with_memory_share(replace(options, gpu=gpu), fraction), None)
            name = f"{gpu or 'no GPU'} {'by default' if fraction is None else f'at {fraction:g}'}"
            try:
                plan = setup.plan(inputs).plan
            except SizingError:
                marks.append(Mark(name, None))
                longest = max(longest, inputs.max_model_len)
                continue
            if len(plan.groups) != 1 or plan.groups[0].kind != "full_attention":
                raise UserError(
                    f"{inputs.shape.name}: the curve needs one group of full attention; use `kvtwin replay`"
                )
            marks.append(Mark(name, plan.num_blocks))
            longest = max(longest, plan.max_model_len)
    return marks, longest
