"""The page of ``kvtwin report``: what is on it, and how it is put together. It loads nothing from a network."""
