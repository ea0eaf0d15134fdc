"""The program that asks SGLang is no test: it runs in an environment of its own."""

collect_ignore = ["real_cache.py"]
