"""``make bench``: the same requests by kvtwin's compiled loop, its plain scheduler, Dynamo and vLLM, in one table.

Contenders take turns, so that all meet the same machine; of each the fastest repeat counts. Times are CPU seconds.
"""

import argparse
import datetime
import math
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.bench.cases import CASES, Case
from tests.bench.contenders import Measured, run

REPOSITORY = Path(__file__).parents[2]

Best = dict[tuple[str, int], Measured]

COMPILED, PLAIN, DYNAMO, VLLM = "kvtwin, compiled", "kvtwin, plain", "Dynamo's mocker", "vLLM's scheduler"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("traces", type=Path, help="the folder of public traces")
    parser.add_argument("--case", help="only cases whose name has this in it")
    parser.add_argument("--slow", action="store_true", help="also a million and ten million requests")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--plain-requests", type=int, default=1000, help="so many of the first, for the plain scheduler"
    )
    parser.add_argument("--vllm-requests", type=int, default=150, help="so many of the first, for vLLM")
    parser.add_argument("--limit-s", type=float, default=900, help="wall time that one replay may take")
    given = parser.parse_args()
    given.dynamo_python = _python("DYNAMO_PYTHON", ".dynamo/bin/python")
    given.oracle_python = _python("ORACLE_PYTHON", ".oracle/venv/bin/python")
    os.environ.setdefault("VLLM_ORACLE_SRC", str(REPOSITORY / ".oracle/vllm_src"))
    run(sys.executable, "of_kvtwin.py", "demo", 2000, limit_s=given.limit_s)  # so that machine code has been made
    print(f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.")
    print("Of each contender the fastest of", given.repeats, "repeats in turn.\n")
    print(
        "| workload | by | requests | CPU s, whole command | replay alone | times kvtwin's | requests/s | steps/s "
        "| us per block | peak MB |\n| --- | --- " + "| --: " * 8 + "|"
    )
    sizes: dict[int, float] = {}
    for case in CASES:
        if (case.slow and not given.slow) or (given.case and given.case not in case.name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            best = _best_of(case, *case.write(given.traces, Path(folder)), given)
        _print(case, best)
        if (COMPILED, 0) in best and "generated" in case.name:
            sizes[best[COMPILED, 0].facts["requests"]] = _replay_s(best[COMPILED, 0])
    if len(sizes) > 1:
        (few, fast), *_, (many, long) = sorted(sizes.items())
        exponent = math.log(long / fast) / math.log(many / few)
        print(
            f"\nFrom {few:,} to {many:,} generated requests, time grows with the power {exponent:.2f} of their number."
        )


def _python(variable: str, usual: str) -> str | None:
    """The interpreter of a contender, if it is set up."""
    path = Path(os.environ.get(variable, REPOSITORY / usual))
    return str(path) if path.exists() else None


def _best_of(case: Case, trace: Path, as_mooncake: Path, given: argparse.Namespace) -> Best:
    """Of each contender, and of how many of the first requests it replayed (0: all), its fastest repeat."""
    options = (trace, case.num_blocks, "--rate-scale", case.rate_scale)
    for_vllm = trace.with_name("for-vllm.json")
    few, fewest, limit_s = given.plain_requests, given.vllm_requests, given.limit_s

    def kvtwin(number: int, *more: object, interpreted: bool = False) -> Measured | None:
        some = ("--num-prompts", number) if number else ()
        words = (*options, *some, *more)
        return run(sys.executable, "of_kvtwin.py", *words, interpreted=interpreted, limit_s=limit_s)

    turns = {
        (COMPILED, 0): lambda: kvtwin(0),
        (COMPILED, few): lambda: kvtwin(few),
        (PLAIN, few): lambda: kvtwin(few, interpreted=True),
    }
    if given.dynamo_python:
        words = (given.dynamo_python, "of_dynamo.py", as_mooncake, case.num_blocks)
        turns[DYNAMO, 0] = lambda: run(*words, limit_s=limit_s)
    if given.oracle_python:
        turns[COMPILED, fewest] = lambda: kvtwin(fewest, "--vllm", for_vllm)
        turns[VLLM, fewest] = lambda: run(
            given.oracle_python, "of_vllm.py", for_vllm, case.num_blocks, limit_s=given.limit_s
        )
    best: Best = {}
    for repeat in range(given.repeats):
        for who, measure in turns.items():
            measured = measure()
            if measured and (who not in best or _replay_s(measured) < _replay_s(best[who])):
                best[who] = measured
        print(f"{case.name}: repeat {repeat + 1} of {given.repeats}", file=sys.stderr)
    return best


def _replay_s(measured: Measured) -> float:
    return measured.facts["simulation_cpu_s"]


def _print(case: Case, best: Best) -> None:
    """A row per contender, beside kvtwin's compiled loop on as many requests."""
    for (name, number), (facts, cpu_s, peak_bytes) in best.items():
        replay_s, requests, steps, blocks = (
            facts.get(key) for key in ("simulation_cpu_s", "requests", "steps", "blocks")
        )
        ours = best.get((COMPILED, number))
        cells = (
            *(case.name, name, f"{requests:,}", f"{cpu_s:.2f}", f"{replay_s:.2f}"),
            f"{replay_s / _replay_s(ours):.1f}" if ours else "",
            f"{requests / replay_s:,.0f}",
            f"{steps / replay_s:,.0f}" if steps else "",
            f"{1e6 * replay_s / blocks:.2f}" if blocks else "",
            f"{peak_bytes / 1e6:.0f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
        if name == COMPILED and facts["decided_by"] != "compiled loop":
            print(f"{case.name}: decided by the {facts['decided_by']}", file=sys.stderr)
        if (name, number) == (COMPILED, 0):
            print(f"{case.name}: {facts['preemptions']:,} preemptions", file=sys.stderr)
        if "pool_us_per_block" in facts:
            print(f"vLLM's BlockPool alone: {facts['pool_us_per_block']:.2f} us per block", file=sys.stderr)


if __name__ == "__main__":
    main()
