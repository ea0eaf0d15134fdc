"""The options for several replicas of a server and the router before them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, File, JsonObject, Number, Switch, Text, Whole
from kvtwin.experiments.options.sizing import MOST_REPLICAS
from kvtwin.sim.cluster.router_names import ROUTER_NAMES


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Replicas (data parallelism; see docs/routing.md)."""

    replicas: Path | None = option(
        None, File("FILE.yaml"), "a list of unequal replicas: the options in which each differs from the others"
    )
    router: str = option(
        "vllm-dp", Choice(ROUTER_NAMES), "who chooses the replica that serves a request; vllm-dp: vLLM itself"
    )
    api_server_count: int | None = option(
        None, Whole("N", 1, MOST_REPLICAS), "front ends of vllm-dp on a node (default: its replicas)", "-asc"
    )
    data_parallel_size_local: int | None = option(
        None, Whole("N", 1, MOST_REPLICAS), "replicas of one node, with --data-parallel-hybrid-lb", "-dpl"
    )
    data_parallel_hybrid_lb: bool = option(
        False, Switch(), "vllm-dp balances the replicas of a node; somebody outside chooses the node", "-dph"
    )
    data_parallel_external_lb: bool = option(
        False, Switch(), "somebody outside chooses the replica, of a mixture of experts", "-dpe"
    )
    router_config: str | None = option(None, JsonObject(), "settings of the router, as JSON; see docs/routing.md")
    executor: str | None = option(
        None,
        Text("WHERE"),
        "simulate replicas in parallel, if the router makes them independent. dask: on this machine; or the address of "
        "a Dask cluster, such as tcp://host:8786 (extra: dask)",
    )
    router_event_lag_ms: float = option(
        0.0, Number("MS", 0, 3_600_000), "time from the end of a step until a router sees its KV events"
    )
    router_characters_per_token: int = option(
        4, Whole("N", 1, 64), "length of a token in the text that some routers read instead of tokens"
    )
