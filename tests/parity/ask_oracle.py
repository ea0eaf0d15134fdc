"""Make parity cases with the real vLLM's answers: runs under the oracle's own interpreter.

    ask_oracle.py --first SEED --count N --out DIR [--images|--connectors]

Writes N random cases, with --images those of them that have images, with --connectors all of them with a connector,
each as workload, configuration and log, in the layout of golden/. Of a case that vLLM itself refuses or crashes on,
workload and configuration go to DIR/without_answer; the reason is printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import random_cases  # noqa: E402

from tests.parity.oracle.connector_oracle import ConnectorOracle  # noqa: E402
from tests.parity.oracle.offload_oracle import OffloadOracle  # noqa: E402


def write_jsonl(path: Path, records: list) -> None:
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def write_case(folder: Path, name: str, config: dict, lines: list, packed: str = "") -> None:
    """Write a case with the real scheduler's answer, its files ending in ``packed``."""
    is_native = (config.get("connector") or {}).get("kind") == "native"
    oracle = (OffloadOracle if is_native else ConnectorOracle)(config, [dict(line) for line in lines])
    records: list = []
    oracle.run(records.append)
    write_jsonl(folder / f"{name}.workload.jsonl{packed}", lines)
    write_jsonl(folder / f"{name}.log.jsonl{packed}", records)
    (folder / f"{name}.config.json").write_text(json.dumps(oracle.cfg | {"name": name}, indent=1))


def keep_unanswered(seed: int, config: dict, lines: list, folder: Path) -> None:
    """Write a case to which there is no log."""
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / f"random_{seed}.workload.jsonl", lines)
    (folder / f"random_{seed}.config.json").write_text(json.dumps(config, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--connectors", action="store_true")
    parser.add_argument("--offloading", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = list(range(options.first, options.first + options.count))
    if options.images:
        seeds = [seed for seed in seeds if "encoder_cache_size" in random_cases.random_case(seed)[0]]
    make_case = random_cases.random_connected_case if options.connectors else random_cases.random_case
    if options.offloading:
        make_case = random_cases.random_offloaded_case
    refused = 0
    for seed in seeds:
        try:
            write_case(options.out, f"random_{seed}", *make_case(seed))
        except Exception as error:
            refused += 1
            keep_unanswered(seed, *make_case(seed), options.out / "without_answer")
            print(f"case {seed}: vLLM gave no answer: {type(error).__name__}: {error}"[:300])
    print(f"{len(seeds) - refused} cases asked, {refused} without an answer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
