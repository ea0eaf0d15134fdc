"""Runs side by side, differences first."""
