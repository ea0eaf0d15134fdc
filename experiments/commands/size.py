"""``kvtwin size``: how many KV cache blocks a model gets on a GPU, item by item."""

from __future__ import annotations

import json
import sys

from kvtwin.experiments.options.size import SizeOptions

OPTIONS = SizeOptions

EPILOGUE = """\
examples:
  kvtwin size --model meta-llama/Llama-3.1-8B --gpu h100
  kvtwin size --model gpt-oss-20b --gpu rtx-4090 --max-model-len -1 --trace conversation_trace.jsonl.gz
  kvtwin size --log vllm.log --gpu h100
  kvtwin size --model ./config.json --kv-cache-memory-bytes 10GiB --max-model-len 8192 --json

Exit code: 0; 2 if vLLM would not start, or for a mistake in the input.
"""


def run(options: SizeOptions) -> int:
    """Print the budget and the plan; exit code 2 where vLLM would not start. UserError: a bad option."""
    from kvtwin.engine.sizing.group_planning import SizingError
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.setup.servers import setup_of
    from kvtwin.experiments.setup.speculation import read_drafting
    from kvtwin.experiments.sizes.facts import size_facts
    from kvtwin.experiments.sizes.request_lengths import concurrency_facts, request_lengths
    from kvtwin.experiments.sizes.text import budget_parts, plan_parts

    if options.log:
        from kvtwin.experiments.sizes.log_comparison import log_facts, log_parts

        facts = log_facts(options)
        print(json.dumps(facts, indent=2, allow_nan=False)) if options.json else show(*log_parts(facts))
        return 0
    options = options.as_for_a_replay()
    drafting = read_drafting(options.speculative_config, async_scheduling=options.async_scheduling)
    setup = setup_of(options)
    inputs = setup.inputs(options, drafting)
    lengths = request_lengths(options)
    error = None
    result = None
    try:
        result = setup.plan(inputs)
    except SizingError as problem:
        error = problem
    if options.json:
        facts = size_facts(inputs, result, error) | concurrency_facts(result, lengths)
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        show(*budget_parts(inputs), *(plan_parts(result) if result else ()))
        for name, tokens in lengths.items() if result else ():
            print(f"Maximum concurrency for the trace's {name} of {tokens:,} tokens per request: ", end="")
            print(f"{result.plan.concurrency_at(tokens):.2f}x")
    if error:
        print(f"kvtwin: error: {setup.explained(error, inputs, options, drafting)}", file=sys.stderr)
    return 2 if error else 0
