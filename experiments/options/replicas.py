"""The options for several replicas of a server and the router before them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, File, JsonObject, Whole
from kvtwin.sim.cluster.router_names import ROUTER_NAMES

MOST_REPLICAS = 1024


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Replicas (data parallelism; see docs/routing.md)."""

    data_parallel_size: int = option(
        1, Whole("N", 1, MOST_REPLICAS), "replicas of the server, each with its own cache", "-dp"
    )
    replicas: Path | None = option(
        None, File("FILE.yaml"), "a list of unequal replicas: the options in which each differs from the others"
    )
    router: str = option("round-robin", Choice(ROUTER_NAMES), "who chooses the replica that serves a request")
    router_config: str | None = option(None, JsonObject(), "settings of the router, as JSON; see docs/routing.md")
    router_characters_per_token: int = option(
        4, Whole("N", 1, 64), "length of a token in the text that some routers read instead of tokens"
    )
