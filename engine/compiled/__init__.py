"""What is compiled: the pool's functions, and the loop that decides whole stretches of steps (docs/performance.md)."""
