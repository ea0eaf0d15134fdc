"""Random sequences of operations on a block manager with TensorRT-LLM's rules, and what it answers to each.

``python -m tests.engine.trtllm.operations --count N`` counts how often N cases do what is rare.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.engine.trtllm.model import Model
from tests.engine.trtllm.model_blocks import Range

MAX_PROMPT_BLOCKS = 5


@dataclass(frozen=True)
class Case:
    """The settings of a ``Model``, and operations that it carries out without ever lacking a block.

    An operation is the name of a method of ``Model`` and its arguments.
    """

    settings: dict[str, int | bool]
    operations: list[tuple]


def random_case(seed: int, num_operations: int = 60) -> Case:
    """A case of few blocks, few different tokens and prompts that begin alike."""
    random = Random(seed)
    tokens_per_block = random.randint(2, 8)
    settings: dict[str, int | bool] = {
        "num_device_blocks": random.randint(2, 16),
        "num_host_blocks": random.choice([0, 0, 1, 2, 4, 12]),
        "tokens_per_block": tokens_per_block,
        "partial_reuse": random.random() < 0.8,
        "copy_on_partial_reuse": random.random() < 0.7,
        "secondary_offload_min_priority": random.choice([0, 30, 30, 36, 80]),
        "onboard_blocks": random.random() < 0.9,
    }
    num_kinds = random.choice([2, 2, 3, 20])
    retained = random.random() < 0.7
    model = Model(**settings)
    operations: list[tuple] = []
    prompts: list[list[int]] = [[]]
    now_ms = 0
    for next_id in range(num_operations):
        running = list(model.sequences)
        kind = random.choice(["add", "add", "token", "token", "context", "remove", "remove", "refresh"])
        if kind == "add":
            old = random.choice(prompts)
            prompt = old[: random.randint(0, len(old))]
            longest = MAX_PROMPT_BLOCKS * tokens_per_block
            prompt = (prompt + [random.randrange(num_kinds) for _ in range(random.randint(1, longest))])[:longest]
            if random.random() < 0.2 and old:
                prompt = old
            if -(-len(prompt) // tokens_per_block) > model.num_free()[0]:
                continue
            ranges = random_ranges(random, len(prompt)) if retained else []
            decode = (
                (random.choice([0, 35, 35, 60, 100]), random.choice([None, None, 3, 10])) if retained else (35, None)
            )
            operation = ("add_sequence", next_id, prompt, ranges, decode)
            prompts.append(prompt)
        elif kind == "refresh":
            now_ms += random.choice([0, 1, 2, 5, 20])
            operation = ("refresh", now_ms)
        elif not running or (kind == "token" and not model.num_free()[0]):
            continue
        elif kind == "token":
            sequence_id = random.choice(running)
            operation = ("add_token", sequence_id, random.randrange(num_kinds))
            prompts.append([*model.sequences[sequence_id].tokens, operation[2]])
        else:
            operation = ({"context": "store_context", "remove": "remove_sequence"}[kind], random.choice(running))
        getattr(model, operation[0])(*operation[1:])
        operations.append(operation)
    return Case(settings, operations)


def random_ranges(random: Random, num_tokens: int) -> list[Range]:
    """Up to three ranges with gaps, as a request may give them; they may reach beyond the prompt."""
    ranges: list[Range] = []
    start = 0
    for _ in range(random.randint(0, 3)):
        start += random.choice([0, 0, random.randint(0, num_tokens)])
        end = start + random.randint(1, num_tokens)
        ranges.append((start, end, random.choice([0, 10, 30, 35, 50, 50, 100]), random.choice([None, None, 1, 4, 10])))
        start = end
    if ranges and random.random() < 0.3:
        ranges[-1] = (ranges[-1][0], None, *ranges[-1][2:])
    return ranges


def answers(manager: Model, case: Case) -> Iterator[tuple]:
    """After each operation: the operation, its answer, the free counts, the tree, and the events it caused."""
    seen = 0
    for name, *arguments in case.operations:
        answer = getattr(manager, name)(*arguments)
        yield (name, *arguments), answer, manager.num_free(), manager.tree(), manager.events[seen:]
        seen = len(manager.events)


def count_rarities(num_cases: int) -> Counter:
    """How often the cases of the seeds below ``num_cases`` do what."""
    counts: Counter = Counter()
    for seed in range(num_cases):
        case = random_case(seed)
        for operation, answer, _, _, events in answers(Model(**case.settings), case):
            counts[operation[0]] += 1
            counts.update(f"event {event[0]} {event[2] if event[0] == 'updated' else ''}".strip() for event in events)
            if operation[0] == "add_sequence":
                counts.update(move[0] for move in answer.moves)
                counts["hit"] += answer.hit_tokens > 0
                counts["hit within a block"] += answer.hit_tokens % case.settings["tokens_per_block"] > 0
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="cases")
    for what, number in sorted(count_rarities(parser.parse_args().count).items()):
        print(f"{number:>9,}  {what}")
