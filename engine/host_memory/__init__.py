"""Host memory beside the device's pool: swapped-out requests, and an offload tier for evicted blocks."""
