"""SGLang 0.5.23's radix cache and scheduler, from its sources (docs/sglang.md)."""
