"""Routers by the name that ``--router`` has for them, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.routers.aibrix import AIBrix
from kvtwin.sim.cluster.routers.cache_aware import CacheAware
from kvtwin.sim.cluster.routers.dynamo import Dynamo
from kvtwin.sim.cluster.routers.least_loaded import LeastLoaded
from kvtwin.sim.cluster.routers.llm_d import LlmD, LlmDPrecise
from kvtwin.sim.cluster.routers.oracle import Oracle
from kvtwin.sim.cluster.routers.power_of_two import PowerOfTwo
from kvtwin.sim.cluster.routers.prefix_aware import PrefixAware
from kvtwin.sim.cluster.routers.round_robin import RoundRobin
from kvtwin.sim.cluster.routers.session import Session
from kvtwin.sim.cluster.routers.uniform import Uniform
from kvtwin.sim.cluster.routers.vllm_dp import VllmDataParallel

_CLASSES: tuple[type[Router], ...] = (
    VllmDataParallel,
    RoundRobin,
    Uniform,
    LeastLoaded,
    PowerOfTwo,
    Session,
    CacheAware,
    PrefixAware,
    LlmD,
    LlmDPrecise,
    Dynamo,
    AIBrix,
    Oracle,
)

ROUTERS = {router.name: router for router in _CLASSES}


def make_router(name: str, settings: Mapping[str, Any], common: Mapping[str, Any]) -> Router:
    """The router ``name`` with its own ``settings``, and those of the ``common`` ones that it has.

    ValueError: it has no such setting, or the value is not of the setting's kind.
    """
    router = ROUTERS[name]
    own = {field.name: field for field in _settings(router) if not field.metadata.get("common")}
    for key, value in settings.items():
        if key not in own:
            known = f"has {', '.join(own)}" if own else "has no settings"
            raise ValueError(f"{key}: the router {name} {known}")
        _check(own[key], value)
    used = {field.name: common[field.name] for field in _settings(router) if field.metadata.get("common")}
    made: Router = router(**used, **settings)
    return made


def _settings(router: type[Router]) -> list[Field[Any]]:
    return [field for field in fields(router) if field.init]  # type: ignore[arg-type]  # all are dataclasses


def _check(field: Field[Any], value: Any) -> None:
    kind = type(field.default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number if kind is float else isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
        raise ValueError(f"{field.name}: expected {_KINDS[kind]}, got {value!r}")
    if is_number and value < 0:
        raise ValueError(f"{field.name}: expected at least 0, got {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
