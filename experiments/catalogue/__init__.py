"""Models and GPUs that are known by name."""
