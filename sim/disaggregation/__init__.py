"""Prefill and decode on replicas of their own: what carries KV caches between them, and who decides where to prefill."""
