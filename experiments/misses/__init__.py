"""The sources of missed prompt tokens, as figures and in words."""
