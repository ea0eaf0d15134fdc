"""``kvtwin trace generate``: write a synthetic workload to a file."""

from __future__ import annotations

from kvtwin.experiments.options.trace_tools import GenerateOptions

OPTIONS = GenerateOptions

EPILOGUE = """\
Conversations start as a gamma process (Poisson by default). Each begins with one of the shared system prompts. Each
turn's prompt repeats the conversation so far, so a prefix cache can hit it. Every token is known.

examples:
  kvtwin trace generate chat.jsonl.gz --num-prompts 2000 --conversations-per-s 5 --turns 4 --think-time-s 8
  kvtwin trace generate agents.jsonl.gz --turns 3 --tool-calls 12 --tool-time-s 5 --think-time-s 60
"""


def run(options: GenerateOptions) -> int:
    """Write the file; nothing is overwritten."""
    from kvtwin.experiments.traces.generate import generate

    return generate(options)
