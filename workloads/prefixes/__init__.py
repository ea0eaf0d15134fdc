"""What a workload's prompts share, without an engine: chains of blocks, infinite caches, stack distances, curves."""
