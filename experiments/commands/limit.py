"""``kvtwin limit``: the highest rate without preemptions, within limits on hit rate and latencies."""

from __future__ import annotations

from kvtwin.experiments.options.limit import LimitOptions

OPTIONS = LimitOptions

EPILOGUE = """\
The search varies --rate-scale; if --request-rate or --session-rate is given, it varies that one and starts there.
It bisects: nothing is replayed between the highest rate that held and the lowest that failed. The limit is exact only
if everything that holds at one rate also holds at lower rates. With --goodput, each latency must stay within its limit
at every percentile of --metric-percentiles.

examples:
  kvtwin limit trace.jsonl --model meta-llama/Llama-3.1-8B --gpu l40s --memory-fractions 0.5,0.7,0.92
  kvtwin limit demo --gpu rtx-4090 --max-model-len 8192 --goodput ttft:500 tpot:50 --hit-rate-within 0.02

Exit code: 0; 1 if a server could not be replayed; 2 for a mistake in the input.
"""


def run(options: LimitOptions) -> int:
    """Look for the limits, and print them. Exit code 1 when a server could not be replayed."""
    from kvtwin.experiments.limits.all_limits import limit_of_options
    from kvtwin.experiments.limits.text import text_parts
    from kvtwin.experiments.records.result_file import Found, print_and_keep

    def find() -> Found:
        facts = limit_of_options(options)
        return facts, text_parts(facts)

    facts = print_and_keep("limit", options, find)
    return 1 if any("error" in server for server in facts["servers"]) else 0
