"""KV connectors: caches outside the engine's own memory that requests are loaded from, or kept for."""
