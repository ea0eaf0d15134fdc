"""``kvtwin curve``: the hit rate of a trace at every size of the cache, without simulating each."""

from __future__ import annotations

from kvtwin.experiments.options.curve import CurveOptions

OPTIONS = CurveOptions

EPILOGUE = """\
One pass over the trace gives all sizes (stack distances). It takes requests one after another, in order of arrival.
Only a replay models overlapping requests, preemptions and the token budget. Numbers of blocks include the null block,
as in --num-gpu-blocks-override.

examples:
  kvtwin curve conversation_trace.jsonl.gz
  kvtwin curve trace.jsonl --model meta-llama/Llama-3.1-8B --gpu l40s,h200 --memory-fractions 0.5,0.92
  kvtwin curve trace.jsonl --model Llama-3.1-8B --gpu h200 --plot curve.png --runs first-sweep
  kvtwin curve trace.jsonl --block-size 512 --at 1000,4000,16000 --json

With --model and --gpu, the curve marks the cache sizes of these GPUs. The options of `kvtwin size` apply.
"""


def run(options: CurveOptions) -> int:
    """Print the curve."""
    from kvtwin.experiments.curves.text import text_parts
    from kvtwin.experiments.curves.trace_curve import curve_of_options, draw_curve
    from kvtwin.experiments.records.result_file import Found, print_and_keep
    from kvtwin.experiments.setup.trace import open_trace, warn_of

    def find() -> Found:
        workload = open_trace(options.trace, options)
        warn_of(workload)
        facts = curve_of_options(options, workload)
        return facts, text_parts(workload, facts)

    print_and_keep("curve", options, find, lambda facts: draw_curve(options, facts))
    return 0
