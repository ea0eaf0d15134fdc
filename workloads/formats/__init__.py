"""One reader per public trace format, and the registry of them."""
