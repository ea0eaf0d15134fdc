"""What happened to one request, and why."""
