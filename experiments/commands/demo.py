"""``kvtwin demo``: replay the bundled workload on a pool small enough to show what a full cache does."""

from __future__ import annotations

from kvtwin.experiments.commands import replay
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.options.replay import DEFAULT_MODEL, ReplayCommandOptions
from kvtwin.experiments.options.results import NoOptions
from kvtwin.experiments.options.trace import DEMO

OPTIONS = NoOptions

DEMO_OPTIONS = ReplayCommandOptions(
    trace=DEMO,
    model=DEFAULT_MODEL,
    gpu="rtx-4090",
    max_model_len=8192,
    num_gpu_blocks_override=1800,
    max_num_seqs=64,
)
_COMMAND = command_line("replay", DEMO_OPTIONS, ("model",))

EPILOGUE = f"""\
This runs `{_COMMAND}`.

example:
  kvtwin demo
"""


def run(_options: NoOptions) -> int:
    """Replay the bundled workload as a user would."""
    print(f"$ {_COMMAND}\n", flush=True)
    return replay.run(DEMO_OPTIONS)
