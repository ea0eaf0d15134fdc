"""Where missed prompt tokens come from, and what to make of it."""
