"""vLLM 0.33's native offloading: prompt blocks are copied to the host as soon as they are computed, and loaded back."""
