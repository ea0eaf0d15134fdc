"""Events of a run: what a run records of its blocks, and the file of them."""
