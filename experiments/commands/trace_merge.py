"""``kvtwin trace merge``: bring traces together in one."""

from __future__ import annotations

from kvtwin.experiments.options.trace_tools import MergeOptions

OPTIONS = MergeOptions

EPILOGUE = """\
Every trace counts from its own start. Requests and sessions get the number of their trace before their names. Ids of
prefixes stay apart, while equal tokens stay equal.

examples:
  kvtwin trace merge chat.jsonl agents.csv --out both.jsonl.gz
"""


def run(options: MergeOptions) -> int:
    """Write the file; nothing is overwritten."""
    from kvtwin.experiments.traces.merge import merge

    return merge(options)
