"""What a server recorded of the requests that it served, and how a simulation of the same requests compares."""
