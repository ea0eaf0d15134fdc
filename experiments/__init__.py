"""What a user runs: the command line, and everything that it uses."""
