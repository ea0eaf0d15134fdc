"""Compare with the real vLLM on fresh random cases: ``make parity [N=300] [SEED=...]``.

Sets up the oracle on first use (a virtual environment with vLLM's Python files and a CPU build of torch, under
``.oracle/``; some minutes and gigabytes), lets it answer N random cases and compares every field of every step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.parity.__main__ import case_names, compare_case, log_file
from tests.parity.case import UnsupportedCaseError, engine_config, read_jsonl
from tests.parity.kinds import events, kinds
from tests.parity.oracle.connector_oracle import DEFAULT_CONFIG

HERE = Path(__file__).resolve().parent
ORACLE = HERE.parents[1] / ".oracle"


def set_up_oracle(folder: Path) -> dict[str, str]:
    """Make the oracle's environment, if it is not there; return the variables that name it."""
    if "VLLM_ORACLE_SRC" in os.environ and "ORACLE_PYTHON" in os.environ:
        return {name: os.environ[name] for name in ("VLLM_ORACLE_SRC", "ORACLE_PYTHON")}
    if not (folder / "ready").exists():
        print(f"setting up the oracle in {folder} (once; some minutes)", flush=True)
        subprocess.run(["bash", str(HERE / "oracle" / "setup.sh"), str(folder)], check=True, stdout=subprocess.DEVNULL)
        (folder / "ready").touch()
    return {"VLLM_ORACLE_SRC": str(folder / "vllm_src"), "ORACLE_PYTHON": str(folder / "venv" / "bin" / "python")}


def ask_oracle(variables: dict[str, str], first_seed: int, count: int, folder: Path, *, only: list[str]) -> None:
    """Have the real vLLM answer ``count`` random cases into ``folder``; ``only`` has ask_oracle.py's choice of them."""
    command = [variables["ORACLE_PYTHON"], str(HERE / "ask_oracle.py"), "--out", str(folder)]
    command += ["--first", str(first_seed), "--count", str(count), *only]
    subprocess.run(command, check=True, env=os.environ | variables, stderr=subprocess.DEVNULL)


def compare_folder(folder: Path) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Totals of a folder, how many cases there are of each kind, and what happened in them."""
    totals = Counter({"cases": 0, "steps": 0, "differences": 0, "refused": 0, "cases_by_loop": 0, "steps_by_loop": 0})
    kind_counts: Counter[str] = Counter()
    event_counts: Counter[str] = Counter()
    for name in case_names(folder):
        config = DEFAULT_CONFIG | json.loads((folder / f"{name}.config.json").read_text())
        lines = list(read_jsonl(log_file(folder, name, "workload")))
        try:
            case_steps, case_differences = compare_case(folder, name)
        except UnsupportedCaseError:  # vLLM dies of it under circumstances that this case does not bring about
            totals["refused"] += 1
            continue
        totals.update(cases=1, steps=case_steps, differences=case_differences)
        with suppress(UnsupportedCaseError):  # the loop leaves it to the plain scheduler
            case_steps, case_differences = compare_case(folder, name, compiled=True)
            totals.update(cases_by_loop=1, steps_by_loop=case_steps, differences=case_differences)
        kind_counts.update(kinds(config, lines))
        event_counts.update(events(read_jsonl(log_file(folder, name, "log"))))
    return totals, kind_counts, event_counts


def not_refused(folder: Path) -> list[str]:
    """Names of the cases that vLLM does not start with, or dies of, and that we would go on with."""
    names = []
    for name in case_names(folder / "without_answer"):
        config = DEFAULT_CONFIG | json.loads((folder / "without_answer" / f"{name}.config.json").read_text())
        try:
            engine_config(config, num_loras=3)
        except UnsupportedCaseError:
            continue
        names.append(name)
    return names


def main() -> int:
    """Ask, compare, sum up; exit status 1 when anything differs."""
    parser = argparse.ArgumentParser(prog="make parity", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=300, help="cases (300)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first seed (the time)")
    parser.add_argument("--images", action="store_true", help="only the cases that have images, about one in four")
    parser.add_argument("--connectors", action="store_true", help="cases with a KV connector, which others never have")
    parser.add_argument("--offloading", action="store_true", help="cases with native offloading, likewise")
    parser.add_argument("--keep", type=Path, help="keep the cases in this folder")
    options = parser.parse_args()
    variables = set_up_oracle(ORACLE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        print(f"seeds {options.seed} to {options.seed + options.count - 1}", flush=True)
        only = (
            ["--images"] * options.images
            + ["--connectors"] * options.connectors
            + ["--offloading"] * options.offloading
        )
        ask_oracle(variables, options.seed, options.count, folder, only=only)
        totals, kind_counts, event_counts = compare_folder(folder)
        unanswered = case_names(folder / "without_answer")
        wrong = not_refused(folder)
    for counts in (kind_counts, event_counts):
        print(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    for name in wrong:
        print(f"{name}: vLLM gives no answer, and it is not refused")
    num_refused = len(unanswered) - len(wrong)
    print(f"refused by name: {num_refused} cases to which vLLM gives no answer, {totals['refused']} that it survives")
    print(f"again through the compiled loop: {totals['cases_by_loop']} cases, {totals['steps_by_loop']} steps")
    print(f"cases {totals['cases']} steps {totals['steps']} differences {totals['differences'] + len(wrong)}")
    return 1 if totals["differences"] or wrong or not totals["cases"] else 0


if __name__ == "__main__":
    sys.exit(main())
