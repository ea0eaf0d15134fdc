"""``kvtwin trace inspect``: print what a workload file holds."""

from __future__ import annotations

import json

from kvtwin.experiments.options.trace_tools import InspectOptions

OPTIONS = InspectOptions

EPILOGUE = """\
examples:
  kvtwin trace inspect conversation_trace.jsonl.gz --block-size 512
  kvtwin trace inspect agents.jsonl.xz --max-model-len 131072
"""


def run(options: InspectOptions) -> int:
    """Print what is in ``options.trace``."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.setup.trace import open_trace
    from kvtwin.experiments.traces.facts import inspect_workload
    from kvtwin.experiments.traces.text import text_parts

    facts = inspect_workload(
        open_trace(options.trace, options), options.block_size, options.max_model_len, options.top_prefixes
    )
    if options.json:
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        show(*text_parts(facts))
    return 0
