"""The folder that a run leaves: its files, whole, and how they are read again."""
