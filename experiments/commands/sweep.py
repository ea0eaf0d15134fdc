"""``kvtwin sweep``: replay a trace under many settings, and compare."""

from __future__ import annotations

import json
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.sweep import SweepOptions

OPTIONS = SweepOptions

EPILOGUE = """\
SPEC.yaml takes any option of `kvtwin replay`, without the dashes:
  trace: demo                      # or a workload file; TRACE on the command line overrides it
  options:
    num-gpu-blocks-override: 1800
  axes:                            # every combination is replayed, each from a cold cache
    block-size: [16, 32, 64]
    scheduling-policy: [fcfs, priority]
  columns: [prefix_cache_hit_rate, num_preemptions]

An axis "a, b" with pairs of values changes two options together. `points` is a list of settings, each combined with all
axes. `columns` takes the keys of `kvtwin replay --json`.

examples:
  kvtwin sweep block-size.yaml
  kvtwin sweep block-size.yaml my-trace.jsonl.gz --out first-sweep; kvtwin sweep ... --out first-sweep --resume

Exit code: 0; 1 if a point failed; 2 for a mistake in the input.
"""


def run(options: SweepOptions) -> int:
    """Replay every point. Exit code 1 when one failed."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.sweeps.check import check_sweep
    from kvtwin.experiments.sweeps.executors import dask_cluster, local_processes
    from kvtwin.experiments.sweeps.folder import SweepFolder
    from kvtwin.experiments.sweeps.spec import read_sweep_spec
    from kvtwin.experiments.sweeps.sweep import run_sweep
    from kvtwin.experiments.sweeps.text import text_parts

    spec = read_sweep_spec(options.spec, options.trace)
    if options.dry_run:
        print("\n".join(f"kvtwin replay {' '.join(point.arguments)}" for point in spec.points))
        return 0
    check_sweep(spec)
    if options.resume and not options.out:
        raise UserError("--resume: needs --out DIR")
    folder = SweepFolder(options.out) if options.out else None
    if folder:
        folder.open(spec, options.resume)
    where = dask_cluster(options.dask) if options.dask else local_processes(options.workers, len(spec.points))

    def show_rows(rows: list[dict[str, Any]]) -> None:
        if options.json:
            print(json.dumps(rows, indent=2, allow_nan=False))
        else:
            show(*text_parts(spec, rows))

    rows = run_sweep(spec, folder, where, show=show_rows)
    return 1 if any("error" in row for row in rows) else 0
