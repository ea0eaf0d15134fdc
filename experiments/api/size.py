"""Memory to blocks."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.api.given import given_options
from kvtwin.experiments.options.size import SizeOptions
from kvtwin.experiments.setup.servers import setup_of
from kvtwin.experiments.setup.speculation import read_drafting
from kvtwin.experiments.sizes.facts import size_facts
from kvtwin.experiments.sizes.log_comparison import log_facts
from kvtwin.experiments.sizes.request_lengths import concurrency_facts, request_lengths


def size(**options: Any) -> dict[str, Any]:
    """How many KV cache blocks a model gets on a GPU, item by item, as ``kvtwin size --json`` prints it.

    ``num_blocks`` counts vLLM's null block; ``blocks_interval`` is the least and most if every estimate errs in one
    direction. ``budgets`` has bytes per pipeline rank and, for each item, its source; ``max_concurrency`` is how many
    requests of ``max_model_len`` tokens fit.

    ``options`` are those of ``kvtwin size --help``: ``model``, ``gpu``, ``tensor_parallel_size``, ...; ``trace``, a
    workload file, adds how many requests of its lengths fit; ``log``, a start-up log of vLLM, returns its lines beside
    what is predicted for them. UserError: a bad option, or vLLM's message where the
    server would not start.
    """
    read = given_options(SizeOptions, "kvtwin size", options)
    if read.log:
        return log_facts(read)
    read = read.as_for_a_replay()
    lengths = request_lengths(read)
    result = setup_of(read).sizing(read, read_drafting(read.speculative_config, async_scheduling=read.async_scheduling))
    return size_facts(result.inputs, result, None) | concurrency_facts(result, lengths)
