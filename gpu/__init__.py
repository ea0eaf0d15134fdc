"""The room for paged attention on a device, driven by the same engine. Empty so far."""
