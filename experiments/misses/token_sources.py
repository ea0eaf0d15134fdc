"""What becomes of prompt tokens, as pictures and pages show it: hits, and misses by their source."""

from kvtwin.experiments.display.values import COLOURS
from kvtwin.experiments.misses.text import LABELS

TOKEN_SOURCES = {
    "prefix_cache_hits": ("hit", COLOURS[0]),
    "external_prefix_cache_hits": ("hit in the host", COLOURS[5]),
    "miss_evicted_tokens": (LABELS["evicted"], COLOURS[1]),
    "miss_unfilled_tokens": (LABELS["unfilled"], COLOURS[4]),
    "miss_sparse_tokens": (LABELS["sparse"], COLOURS[3]),
    "miss_isolation_tokens": (LABELS["isolation"], COLOURS[2]),
    "miss_uncached_tokens": (LABELS["uncached"], COLOURS[6]),
    "miss_alignment_tokens": (LABELS["alignment"], "#888888"),
    "miss_cold_tokens": (LABELS["cold"], "#cccccc"),
    "miss_unknown_tokens": (LABELS["unknown"], "#eeeeee"),
}
"""Keys of a summary from the bottom of a bar upwards, with label and colour."""
