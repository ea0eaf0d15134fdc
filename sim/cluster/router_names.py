"""The names of the routers, for whoever must not wait for the routers themselves."""

from __future__ import annotations

ROUTER_NAMES = (
    "vllm-dp",
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "session",
    "cache_aware",
    "prefix-aware",
    "llm-d",
    "llm-d-precise",
    "dynamo",
    "aibrix",
    "oracle",
)
