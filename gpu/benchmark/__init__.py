"""How fast the kernels are on the device at hand, beside what it can do at most: run by ``gpu/check.sh``."""
