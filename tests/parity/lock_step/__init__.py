"""vLLM's ranks of a mixture of experts, which step together, beside ours."""
