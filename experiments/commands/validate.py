"""``kvtwin validate``: serve a workload for real, simulate it too, compare, and check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtwin.experiments.options.validate import ValidateOptions

OPTIONS = ValidateOptions

EPILOGUE = """\
WORKLOAD is a workload file, demo (the bundled workload), or a YAML file of `trace:` and `options:`: any options above,
without the dashes. Options on the command line override the file's.

Check 1: a simulation that is given the measured times and tokens makes every decision of the real run, and the device
used the engine's block tables and slots. Check 2: every request got the tokens that it gets alone, without a cache.
What remains between measured and predicted is the error of the step-time model.

With --server-run, nothing is computed: a server's own record stands beside its simulation (docs/validate.md).

examples:
  kvtwin validate demo --limit 60 --length-scale 0.25 --max-model-len 1024 --num-gpu-blocks-override 130
  kvtwin validate experiments/configs/validate-smoke.yaml --out first-validation

Exit code: 0; 1 if check 1 or 2 fails; 2 for a mistake in the input, or if the device runs out of memory.
"""


def complete(given: dict[str, Any]) -> dict[str, Any]:
    """``given``, completed by the options of a YAML file if WORKLOAD is one. UserError: the file has a mistake."""
    from kvtwin.experiments.validation.specification import with_specification

    return with_specification(given)


def run(options: ValidateOptions) -> int:
    """Validate. Exit code 1 when a check fails."""
    if options.server_run:
        return _run_beside_server(options, options.server_run)
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.runs.facts import now
    from kvtwin.experiments.validation.kept import validate_and_keep
    from kvtwin.experiments.validation.text import text_parts

    def show_facts(facts: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps({"date": now()} | facts, indent=2, allow_nan=False))
        else:
            show(*facts["heading"], "", *text_parts(facts))

    facts = validate_and_keep(options, show_facts)
    return 0 if all(check["passed"] for check in facts["checks"].values()) else 1


def _run_beside_server(options: ValidateOptions, folder: Path) -> int:
    """What a server did, beside its simulation."""
    from kvtwin.experiments.display.tables import show
    from kvtwin.experiments.runs.facts import now
    from kvtwin.experiments.server_validation.text import server_parts
    from kvtwin.experiments.server_validation.validate import validate_server_run

    facts = validate_server_run(options, folder)
    if options.json:
        print(json.dumps({"date": now()} | facts, indent=2, allow_nan=False))
    else:
        show(*facts["heading"], "", *server_parts(facts))
    return 0
