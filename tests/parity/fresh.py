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
from pathlib import Path

from tests.parity.__main__ import case_names, compare_case, log_file
from tests.parity.case import read_jsonl

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


def ask_oracle(variables: dict[str, str], first_seed: int, count: int, folder: Path) -> None:
    """Have the real vLLM answer ``count`` random cases into ``folder``."""
    command = [variables["ORACLE_PYTHON"], str(HERE / "ask_oracle.py"), "--out", str(folder)]
    command += ["--first", str(first_seed), "--count", str(count)]
    subprocess.run(command, check=True, env=os.environ | variables, stderr=subprocess.DEVNULL)


def pressure(folder: Path, name: str) -> Counter[str]:
    """What happened in a case, to show that the comparison means something."""
    counts: Counter[str] = Counter()
    for record in read_jsonl(log_file(folder, name, "log")):
        counts["preemptions"] += len(record.get("preempted", ()))
        counts["admissions"] += len(record.get("admitted", ()))
        counts["admissions with a hit"] += sum(1 for one in record.get("admitted", ()) if one["num_computed_tokens"])
        counts["stops before the length"] += sum(1 for _, reason in record.get("finished", ()) if reason == "stop")
        counts["drafts verified"] += sum(len(drafts) for _, drafts in record.get("spec", ()))
        counts["aborts"] += len(record.get("aborted", ()))
        counts["stalled cases"] += bool(record.get("stalled"))
    config = json.loads((folder / f"{name}.config.json").read_text())
    counts["cases with speculation"] += bool(config["num_speculative_tokens"])
    counts["async cases"] += config["async_scheduling"]
    counts["priority cases"] += config["policy"] == "priority"
    return counts


def main() -> int:
    """Ask, compare, sum up; exit status 1 when anything differs."""
    parser = argparse.ArgumentParser(prog="make parity", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=300, help="cases (300)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first seed (the time)")
    parser.add_argument("--keep", type=Path, help="keep the cases in this folder")
    options = parser.parse_args()
    variables = set_up_oracle(ORACLE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        print(f"seeds {options.seed} to {options.seed + options.count - 1}", flush=True)
        ask_oracle(variables, options.seed, options.count, folder)
        cases = steps = differences = 0
        counts: Counter[str] = Counter()
        for name in case_names(folder):
            case_steps, case_differences = compare_case(folder, name)
            cases, steps, differences = cases + 1, steps + case_steps, differences + case_differences
            counts += pressure(folder, name)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    print(f"cases {cases} steps {steps} differences {differences}")
    return 1 if differences or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
