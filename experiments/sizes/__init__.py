"""A planned cache as text and as plain data."""
