"""The block manager beside the small model of the tests: equal after every operation.

``python -m tests.engine.trtllm.compare_blocks --count N`` compares N random cases.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from kvtwin.engine.trtllm.retention import RetentionConfig, TokenRange
from tests.engine.trtllm.harness import MS, Cache
from tests.engine.trtllm.model import Model
from tests.engine.trtllm.operations import Case, random_case


class Ours:
    """The implementation under the names of the model's operations."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._cache = Cache(
            settings["num_device_blocks"],
            settings["tokens_per_block"],
            num_host_blocks=settings["num_host_blocks"],
            enable_partial_reuse=settings["partial_reuse"],
            copy_on_partial_reuse=settings["copy_on_partial_reuse"],
            secondary_offload_min_priority=settings["secondary_offload_min_priority"],
            onboard_blocks=settings["onboard_blocks"],
        )
        self._numbers: dict[int, int] = {}

    def add_sequence(self, sequence_id, tokens, ranges=(), decode=(35, None)):
        def ns(duration_ms):
            return None if duration_ms is None else duration_ms * MS

        config = RetentionConfig(
            tuple(TokenRange(start, end, priority, ns(duration)) for start, end, priority, duration in ranges),
            decode[0],
            ns(decode[1]),
        )
        number, _, hit = self._cache.add(list(tokens), config, store=False)
        self._numbers[sequence_id] = number
        return [block.slot for block in self._cache.live[number][0].blocks], hit

    def add_token(self, sequence_id, token):
        new = self._cache.generate(self._numbers[sequence_id], token)
        return self._cache.manager.blocks[new[0]].slot if new else None

    def store_context(self, sequence_id):
        self._cache.store_context(self._numbers[sequence_id])

    def remove_sequence(self, sequence_id):
        self._cache.end(self._numbers.pop(sequence_id))

    def refresh(self, now_ms):
        self._cache.manager.now_ns = now_ms * MS
        self._cache.manager.refresh()

    def num_free(self):
        manager = self._cache.manager
        return manager.device_queues.num_free, manager.host_queues.num_free


def first_difference(case: Case) -> tuple[int, Any, Any, Any] | None:
    """Where the two part first: the operation's place, the operation, and both answers; None if nowhere."""
    model, ours = Model(**case.settings), Ours(case.settings)
    for place, (name, *arguments) in enumerate(case.operations):
        theirs = getattr(model, name)(*arguments)
        mine = getattr(ours, name)(*arguments)
        wanted = (list(theirs.table), theirs.hit_tokens) if name == "add_sequence" else theirs
        if mine != wanted or ours.num_free() != model.num_free():
            return place, (name, *arguments), (mine, ours.num_free()), (wanted, model.num_free())
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="cases")
    parser.add_argument("--show", type=int, default=3, help="differences to show")
    arguments = parser.parse_args()
    num_operations, different = 0, []
    for seed in range(arguments.count):
        case = random_case(seed)
        num_operations += len(case.operations)
        if found := first_difference(case):
            different.append((seed, case, found))
    print(f"{arguments.count:,} cases, {num_operations:,} operations, {len(different)} differ")
    print(Counter(found[1][0] for _, _, found in different))
    for seed, case, found in different[: arguments.show]:
        print(seed, case.settings, *found, *case.operations[: found[0] + 1], sep="\n   ")
