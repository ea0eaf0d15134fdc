"""The room for paged attention on a device, driven by the same engine as the simulation."""
