"""Compare our engine with logs of the real vLLM scheduler: ``python -m tests.parity DIR [--only NAME]``.

DIR holds, per case, NAME.workload.jsonl[.gz], NAME.config.json and NAME.log.jsonl[.gz] (formats: oracle/README.md
beside this file). Every field of every step is compared. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.parity.case import UnsupportedCaseError, read_jsonl, run_case
from tests.parity.compare import compare
from tests.parity.compiled_case import run_compiled_case

SHOWN_PER_CASE = 3


def case_names(folder: Path) -> list[str]:
    """Names of the cases in ``folder``."""
    return sorted(path.name.removesuffix(".config.json") for path in folder.glob("*.config.json"))


def log_file(folder: Path, name: str, kind: str) -> Path:
    """The ``kind`` file (workload or log) of a case, compressed or not."""
    packed = folder / f"{name}.{kind}.jsonl.gz"
    return packed if packed.exists() else folder / f"{name}.{kind}.jsonl"


def compare_case(folder: Path, name: str, *, compiled: bool = False) -> tuple[int, int]:
    """Print the first differences of a case; return how many steps were compared and how many fields differ.

    ``compiled``: through the compiled loop, without KV events. UnsupportedCaseError: it does not know such cases.
    """
    case = json.loads((folder / f"{name}.config.json").read_text())
    lines = list(read_jsonl(log_file(folder, name, "workload")))
    steps = differences = 0
    log = read_jsonl(log_file(folder, name, "log"))
    if compiled:
        log = ({field: value for field, value in record.items() if field != "kv_events"} for record in log)
    for _, found in compare(log, run_compiled_case(case, lines) if compiled else run_case(case, lines)):
        steps += 1
        for difference in found:
            differences += 1
            if differences <= SHOWN_PER_CASE:
                print(f"{name}: {difference}")
    return steps, differences


def main(arguments: list[str] | None = None) -> int:
    """Compare all cases of a folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", metavar="NAME", help="just this case")
    parser.add_argument("--compiled", action="store_true", help="through the compiled loop, where it applies")
    options = parser.parse_args(arguments)
    names = [name for name in case_names(options.folder) if options.only in (None, name)]
    if not names:
        parser.error(f"no case {options.only or ''} in {options.folder}")
    cases = steps = differences = 0
    for name in names:
        try:
            case_steps, case_differences = compare_case(options.folder, name, compiled=options.compiled)
        except UnsupportedCaseError as reason:
            print(f"{name}: skipped, needs {reason}")
            continue
        cases += 1
        steps += case_steps
        differences += case_differences
        print(f"{name}: {case_steps} steps, {case_differences} differences")
    print(f"cases {cases} steps {steps} differences {differences}")
    return 1 if differences or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
