"""From options to what they mean: a workload and its load, a planned cache, an engine, step times, a device."""
