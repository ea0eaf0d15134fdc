"""Units of time in nanoseconds."""

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
