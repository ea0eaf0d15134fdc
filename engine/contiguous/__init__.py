"""Contiguous reservation, as before paging: a range of slots per request."""
