"""What is in a trace file."""
