"""``kvtwin trace convert``: write a trace in another format."""

from __future__ import annotations

from kvtwin.experiments.options.trace_tools import ConvertOptions

OPTIONS = ConvertOptions

EPILOGUE = """\
examples:
  kvtwin trace convert burstgpt.csv burstgpt.jsonl.gz
  kvtwin trace convert chats.parquet chats.jsonl --tokenizer ./my-model
  kvtwin trace convert agents.jsonl agents-mooncake.jsonl --to mooncake
"""


def run(options: ConvertOptions) -> int:
    """Write the file; nothing is overwritten."""
    from kvtwin.experiments.traces.convert import convert

    return convert(options)
