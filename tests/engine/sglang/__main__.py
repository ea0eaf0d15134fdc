"""Random operations on our radix tree and on SGLang's own: every answer, and the whole trees.

SGLANG_DIR=.../sglang ORACLE_PYTHON=.../python python -m tests.engine.sglang --count 20000
... --record        writes golden_trees.json.gz, which the tests compare with
"""

import argparse
import gzip
import json
from collections import Counter

from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from tests.engine.sglang.ask import ask
from tests.engine.sglang.operations import GOLDEN, PAGE_SIZES, our_answers, random_case

OPERATIONS_PER_CASE = 250


RECORDED_OPERATIONS = 60


def record() -> int:
    """Let the real class answer a case of each policy and page size."""
    cases = [random_case(0, policy, size, RECORDED_OPERATIONS) for policy in EVICTION_POLICIES for size in PAGE_SIZES]
    rows = [json.dumps([case, answers]) for case, answers in zip(cases, ask(cases), strict=True)]
    GOLDEN.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="operations per policy and page size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="write the recorded answers anew")
    options = parser.parse_args()
    if options.record:
        return record()
    different = 0
    for policy in EVICTION_POLICIES:
        for page_size in PAGE_SIZES:
            seeds = range(options.seed, options.seed + -(-options.count // OPERATIONS_PER_CASE))
            cases = [random_case(seed, policy, page_size, OPERATIONS_PER_CASE) for seed in seeds]
            theirs = ask(cases)
            wrong = [seed for seed, case, real in zip(seeds, cases, theirs, strict=True) if our_answers(case) != real]
            kinds = Counter(operation[0] for case in cases for operation in case["operations"])
            freed = sum(len(row[0]) for rows, _ in theirs for row in rows if isinstance(row[0], list))
            print(f"{policy:9} page {page_size:2}: {json.dumps(kinds)}, {freed} pages freed, different: {wrong or 0}")
            different += len(wrong)
    return min(different, 1)


raise SystemExit(main())
