"""The search for the highest rate that holds."""
