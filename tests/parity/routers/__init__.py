"""Choices of other routers' own programs, beside ours."""
