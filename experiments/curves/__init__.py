"""The hit rate of a trace at every cache size."""
