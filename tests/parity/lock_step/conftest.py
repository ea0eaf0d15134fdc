"""``ask_vllm.py`` is no test: the oracle's own interpreter runs it."""

collect_ignore = ["ask_vllm.py"]
