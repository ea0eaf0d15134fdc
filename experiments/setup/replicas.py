"""From the options to replicas: the options of each, the router before them, and the cluster of all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from kvtwin.experiments.catalogue.models import load_model
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.experiments.options.engine import EngineOptions
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.reading import as_plain, option_key, read_options
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.sizing import MOST_REPLICAS, SizingOptions
from kvtwin.experiments.options.step_time import StepTimeOptions
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster, Sent
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.routers.registry import ROUTERS, make_router
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.time_units import MILLISECOND_NS

_Options = TypeVar("_Options", bound=ReplayOptions)

_OWN = frozenset(
    field.name for options in (SizingOptions, EngineOptions, StepTimeOptions) for field in fields_of(options)
) - {"data_parallel_size"}
"""Options in which replicas may differ."""


class _ServerOptions(Protocol):
    @property
    def data_parallel_size(self) -> int: ...
    @property
    def replicas(self) -> Path | None: ...


def has_replicas(options: _ServerOptions) -> bool:
    """Whether several servers are simulated, or a router."""
    return options.data_parallel_size > 1 or options.replicas is not None


def check_router(options: _ServerOptions) -> None:
    """UserError: a router is chosen or set up, and it has nothing to choose from. (A sweep may vary both.)"""
    for field in () if has_replicas(options) else fields_of(ReplicaOptions):
        value = getattr(options, field.name)
        if field.name.startswith(("router", "data_parallel")) and value != field.default:
            words = field.flag if value is True else f"{field.flag} {value}"
            raise UserError(f"{words}: needs --data-parallel-size or --replicas")


def replica_options(options: _Options) -> list[_Options]:
    """The options of each replica, alone. UserError: they cannot be, or exclude replicas."""
    for name, why in _ALONE.items():
        if getattr(options, name) != next(field.default for field in fields_of(ReplayOptions) if field.name == name):
            raise UserError(f"--{name.replace('_', '-')}: {why}")
    alone = replace(options, **{field.name: field.default for field in fields_of(ReplicaOptions)})
    if share_experts(options):
        if options.replicas:
            raise UserError(f"--replicas: ranks of {options.model} share their experts, so they are equal; not a file")
        return [alone] * options.data_parallel_size
    alone = replace(alone, data_parallel_size=1)
    if options.replicas is None:
        return [alone] * options.data_parallel_size
    return _unequal(options, alone)


def share_experts(options: ReplayOptions) -> bool:
    """Whether replicas are ranks of one server of a mixture of experts; behind other routers they are servers."""
    is_one_server = options.router == "vllm-dp" and has_replicas(options)
    has_experts = load_model(options.model or "").has_experts
    if options.data_parallel_external_lb and not has_experts:
        raise UserError(
            f"--data-parallel-external-lb: {options.model} has no experts: its replicas are servers of their own; "
            "choose a --router"
        )
    return is_one_server and has_experts


_ALONE = {
    "retention": "not with several replicas: no policy knows the turns that other replicas serve",
    "warmup_requests": "not with several replicas",
}
"""Options that several replicas cannot have, and why."""


def router_of(options: ReplicaOptions, seed: int) -> Router:
    """The router. UserError: a setting that it does not have, or that cannot be."""
    settings = json.loads(options.router_config) if options.router_config else {}
    if options.api_server_count is not None and options.router != "vllm-dp":
        raise UserError(f"--api-server-count: {options.router} has no API servers, vllm-dp has")
    if options.router_event_lag_ms and not ROUTERS[options.router].follows_caches:
        raise UserError(f"--router-event-lag-ms: {options.router} sees no KV events")
    common = {
        "seed": seed,
        "api_server_count": options.api_server_count,
        "ranks_per_node": _ranks_per_node(options),
        "characters_per_token": options.router_characters_per_token,
    }
    try:
        return make_router(options.router, settings, common)
    except ValueError as error:
        raise UserError(f"--router-config: {error}") from None


def _ranks_per_node(options: ReplicaOptions) -> int | None:
    """Replicas that vLLM balances together; None: all. UserError: what vLLM does not start with, or nobody balances."""
    num_local, is_hybrid = options.data_parallel_size_local, options.data_parallel_hybrid_lb
    mode = "--data-parallel-hybrid-lb" if is_hybrid else "--data-parallel-external-lb"
    if not is_hybrid and not options.data_parallel_external_lb:
        if num_local is not None:
            raise UserError("--data-parallel-size-local: makes no difference without --data-parallel-hybrid-lb")
        return None
    if options.router != "vllm-dp":
        raise UserError(f"{mode}: {options.router} chooses the replica, not vllm-dp")
    if not is_hybrid:
        if num_local not in (None, 1):
            raise UserError(f"{mode}: --data-parallel-size-local is 1 then, got {num_local}")
        return 1
    if options.data_parallel_external_lb:
        raise UserError(f"{mode}: not with --data-parallel-external-lb")
    if num_local is None:
        raise UserError(f"{mode}: needs --data-parallel-size-local, the replicas of a node")
    return num_local


def cluster_of(
    options: ReplayOptions,
    clock: Clock,
    simulations: Sequence[ServerSimulation],
    *,
    max_concurrency: int | None,
    on_progress: Callable[[int], None] | None = None,
    on_sent: Sent | None = None,
) -> Cluster:
    """The servers behind their router. UserError: a setting of it, or what it compares differs between them."""
    router = router_of(options, options.seed)
    try:
        return Cluster(
            clock,
            simulations,
            router,
            event_lag_ns=round(options.router_event_lag_ms * MILLISECOND_NS),
            max_concurrency=max_concurrency,
            on_progress=on_progress,
            on_sent=on_sent,
        )
    except ValueError as error:
        raise UserError(f"--router {router.name}: {error}") from None


def _unequal(options: _Options, alone: _Options) -> list[_Options]:
    rows = read_yaml(options.replicas) if options.replicas else []
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{options.replicas}: expected a list with the options of each replica, {{}} for those given")
    if len(rows) > MOST_REPLICAS:
        raise UserError(f"{options.replicas}: expected at most {MOST_REPLICAS} replicas, got {len(rows)}")
    if options.data_parallel_size not in (1, len(rows)):
        raise UserError(
            f"--data-parallel-size {options.data_parallel_size}: {options.replicas} has {len(rows)} replicas"
        )
    found = []
    for number, row in enumerate(rows):
        for name in row:
            if option_key(name) not in _OWN:
                raise UserError(
                    f"{options.replicas}: replica {number}: {name}: not an option in which replicas can differ"
                )
        given = {option_key(name): value for name, value in row.items()}
        try:
            found.append(read_options(type(alone), as_plain(alone) | given, "kvtwin replay"))
        except UserError as error:
            raise UserError(f"{options.replicas}: replica {number}: {error}") from None
    return found
