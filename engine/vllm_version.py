"""Which vLLM is modelled."""

VLLM_VERSION = "0.33.0"
