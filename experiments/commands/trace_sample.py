"""``kvtwin trace sample``: keep some sessions of a trace, drawn at random."""

from __future__ import annotations

from kvtwin.experiments.options.trace_tools import SampleOptions

OPTIONS = SampleOptions

EPILOGUE = """\
Sessions keep their arrivals, and sub-agents stay with the session that started them.

examples:
  kvtwin trace sample conversation_trace.jsonl.gz some.jsonl.gz --num-sessions 1000 --seed 1
"""


def run(options: SampleOptions) -> int:
    """Write the file; nothing is overwritten."""
    from kvtwin.experiments.traces.sample import sample

    return sample(options)
