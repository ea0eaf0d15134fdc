"""vLLM's own balancing among data-parallel engines, beside ours."""
