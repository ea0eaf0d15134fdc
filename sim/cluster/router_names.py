"""The names of the routers, for whoever must not wait for the routers themselves."""

from __future__ import annotations

ROUTER_NAMES = ("round-robin", "random", "least-loaded", "power-of-two", "session")
