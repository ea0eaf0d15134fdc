"""The one error that ends a command with a message instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: one clear line, exit code 2."""
