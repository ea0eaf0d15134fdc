"""TensorRT-LLM rules: independent small models of them, and random operations to compare engines with."""
