"""``kvtwin explain``: replay a trace, and show everything that happened to one request, and why."""

from __future__ import annotations

from kvtwin.experiments.options.explain import ExplainOptions

OPTIONS = ExplainOptions

EPILOGUE = """\
examples:
  kvtwin explain demo --request c66t1 --gpu rtx-4090 --max-model-len 8192 --num-gpu-blocks-override 1800 \
--max-num-seqs 64
  kvtwin explain trace.jsonl --first-preempted
  kvtwin explain trace.jsonl --request 1a2b --json
"""


def run(options: ExplainOptions) -> int:
    """Explain a request. Exit code 1 if it did not finish."""
    from kvtwin.experiments.narration.explanation import explain

    return explain(options)
