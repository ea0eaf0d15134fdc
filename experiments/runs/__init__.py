"""A run: its figures, its texts, its folder."""
