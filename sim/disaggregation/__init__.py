"""Prefill and decode on separate replicas: what carries KV caches between them, and who decides where to prefill."""
