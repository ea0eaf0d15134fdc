"""Random requests for capacity policies."""

from dataclasses import dataclass
from random import Random

from tests.engine.trtllm.capacity_model import Job


@dataclass(frozen=True)
class CapacityCase:
    """Jobs each of which fits alone, drafts included, and where they run."""

    jobs: list[Job]
    num_blocks: int
    tokens_per_block: int
    max_running: int


def random_capacity_case(seed: int, duplicates: bool = False) -> CapacityCase:
    """Few blocks and jobs of very different lengths; with ``duplicates``, all have tokens, and many begin alike."""
    random = Random(seed)
    size = random.randint(2, 8)
    longest, max_draft_tokens = random.choice([5, 15, 40]), random.choice([0, 0, 3])
    jobs = []
    for _ in range(random.randint(2, 12)):
        prompt_tokens = random.randint(1, longest)
        first = random.choice([0, 0, 1])
        jobs.append(
            Job(
                prompt_tokens,
                random.randint(1, 30),
                arrival_iteration=random.choice([0, random.randint(0, 30)]),
                priority=random.choice([0.5, 0.5, 0.5, 0.2, 0.7]),
                chunk_tokens=random.choice([None, size, 2 * size]),
                draft_tokens=random.randint(0, max_draft_tokens),
                tokens=range(first, first + prompt_tokens) if duplicates else None,
            )
        )
    most_tokens = max(job.prompt_tokens + job.max_new_tokens + job.draft_tokens for job in jobs)
    return CapacityCase(jobs, -(-most_tokens // size) + random.randint(0, 10), size, random.randint(1, 6))
