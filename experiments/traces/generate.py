"""A synthetic workload, as options describe it."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.new import check_new
from kvtwin.experiments.options.trace_tools import GenerateOptions
from kvtwin.experiments.traces.new_file import write_new
from kvtwin.workloads.distributions import Constant, Distribution, LogNormal
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.formats.native import write_workload
from kvtwin.workloads.generator import SyntheticWorkload, SystemPrompts
from kvtwin.workloads.time_units import SECOND_NS

_MOST_SYSTEM_TOKENS = 10_000_000
"""They are held in memory."""


def generate(options: GenerateOptions) -> int:
    """Write the file. UserError: it is there already, or cannot be written."""
    check_new(options.out, "")
    if options.system_prompts * options.system_prompt_tokens > _MOST_SYSTEM_TOKENS:
        raise UserError(f"--system-prompt-tokens: expected at most {_MOST_SYSTEM_TOKENS:,} in all system prompts")
    if options.num_prompts / options.conversations_per_s > LAST_NS / SECOND_NS:
        rate = options.conversations_per_s
        raise UserError(f"--conversations-per-s: {rate:g} stretches the workload beyond 292 years")
    workload = SyntheticWorkload(
        num_requests=options.num_prompts,
        conversations_per_s=options.conversations_per_s,
        burstiness=options.burstiness,
        user_tokens=LogNormal(options.user_tokens, options.length_sigma, 1, options.max_tokens),
        output_tokens=LogNormal(options.output_tokens, options.length_sigma, 1, options.max_tokens),
        system_prompts=_system_prompts(options),
        turns=Constant(options.turns),
        think_time_ms=_pause(options.think_time_s, options.think_time_sigma),
        tool_calls=Constant(options.tool_calls),
        tool_tokens=LogNormal(options.tool_tokens, options.length_sigma, 1, options.max_tokens),
        tool_time_ms=_pause(options.tool_time_s, options.think_time_sigma),
        n=options.parallel_samples,
        seed=options.seed,
    )
    return write_new(
        options.out, workload, lambda records: write_workload(options.out, records, "kvtwin trace generate")
    )


def _pause(median_s: float, sigma: float) -> Distribution:
    return LogNormal(1000 * median_s, sigma, 0, 3_600_000) if median_s else Constant(0)


def _system_prompts(options: GenerateOptions) -> SystemPrompts | None:
    if not options.system_prompts:
        return None
    return SystemPrompts(
        number=options.system_prompts, length_tokens=Constant(options.system_prompt_tokens), zipf_exponent=options.zipf
    )
