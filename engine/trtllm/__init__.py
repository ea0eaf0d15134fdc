"""TensorRT-LLM's V1 KV cache manager and its capacity schedulers: from its sources and tests, the real one was not run.

Read `block_manager` first, with `radix_tree` and `eviction_queues`; then `scheduler`, with `capacity` and `chunking`.
Rules, and what they leave open: docs/servers-trtllm.md.
"""
