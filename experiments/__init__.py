"""What a user runs: the command line and everything behind it."""
