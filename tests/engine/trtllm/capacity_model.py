"""The plainest program with TensorRT-LLM's capacity policies: who runs in each iteration.

It follows a written summary of the capacity scheduler and the loop of its tests. An iteration of a context computes a
chunk of it; with the last chunk, and in each iteration after, one token is generated. There is no limit on the tokens
of an iteration.

Open: where the summary says nothing, or two things, this is what the model does.

1.  The first chunk of a context takes the blocks of the whole prompt ("blocks for this step" of the summary would be
    the chunk's only; the expected values with chunks of 40 need the whole).
2.  Draft tokens count towards the blocks that a step needs under MAX_UTILIZATION, also a context's, and take none.
    Under the other policies they do not count.
3.  With ``max_running`` requests scheduled, nothing more fits: MAX_UTILIZATION pauses for it too.
4.  The request to be paused is the last one in order that has blocks, from the one that does not fit on, itself among
    them; what stands behind the paused one is not looked at in this iteration.
5.  A paused request's prompt is what it has so far, and is computed in one piece when it comes back.
6.  A request that waits for a duplicate is passed over, and the walk goes on. A block counts as cached from the
    completion of a context that holds it, for ever; hits shorten the context, but need their blocks all the same.
7.  A request that never fits makes the loop end with ``ValueError`` when nothing runs and nothing is to come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
MAX_UTILIZATION = "MAX_UTILIZATION"
STATIC_BATCH = "STATIC_BATCH"


@dataclass
class Job:
    """A request, and how far it is.

    ``tokens`` is its prompt, if duplicates are to be put off; else only its length matters.
    """

    prompt_tokens: int
    max_new_tokens: int
    arrival_iteration: int = 0
    priority: float = 0.5
    chunk_tokens: int | None = None
    draft_tokens: int = 0
    tokens: Sequence[int] | None = None
    context_tokens: int = 0
    generated_tokens: int = 0
    started: bool = False

    def held_tokens(self) -> int:
        """Tokens with a place in its blocks: the last one generated has none yet."""
        return self.prompt_tokens + max(self.generated_tokens - 1, 0) if self.started else 0


class CapacityModel:
    """Requests that arrived and have not ended, in their order, and what is cached of their prompts."""

    def __init__(self, num_blocks: int, tokens_per_block: int, policy: str, max_running: int) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self.policy = policy
        self.max_running = max_running
        self.active: list[tuple[int, Job]] = []
        self.cached: set[tuple[int, ...]] = set()

    def arrive(self, job_id: int, job: Job) -> None:
        """Behind all of at least its priority."""
        place = sum(other.priority >= job.priority for _, other in self.active)
        self.active.insert(place, (job_id, job))

    def iterate(self) -> tuple[list[int], list[int]]:
        """One iteration: who runs, in order, and who is paused, in the order of pausing."""
        running, paused = self._max_utilization() if self.policy == MAX_UTILIZATION else (self._no_evict(), [])
        for _, job in paused:
            job.prompt_tokens += job.generated_tokens
            job.max_new_tokens -= job.generated_tokens
            job.context_tokens = job.generated_tokens = 0
            job.started, job.chunk_tokens = False, None
        for _, job in running:
            self._step(job)
        self.active = [(job_id, job) for job_id, job in self.active if job.generated_tokens < job.max_new_tokens]
        return [job_id for job_id, _ in running], [job_id for job_id, _ in paused]

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.tokens_per_block)

    def _no_evict(self) -> list[tuple[int, Job]]:
        """Those in progress with all they will need; then new ones, while all that they will need fits too."""
        running = [(job_id, job) for job_id, job in self.active if job.started]
        contributed = {self._first_missing(job) for _, job in running if job.context_tokens < job.prompt_tokens}
        free = self.num_blocks - sum(self._whole(job) for _, job in running)
        if running and self.policy == STATIC_BATCH:
            return running
        for job_id, job in self.active:
            if job.started or self._waits(job, contributed):
                continue
            if self._whole(job) > free or len(running) == self.max_running:
                break
            free -= self._whole(job)
            running.append((job_id, job))
            contributed.add(self._first_missing(job))
        return running

    def _whole(self, job: Job) -> int:
        return self._blocks(job.prompt_tokens + job.max_new_tokens)

    def _max_utilization(self) -> tuple[list[tuple[int, Job]], list[tuple[int, Job]]]:
        """In order, while this step's blocks fit; for those that do not, the last ones with blocks are paused."""
        running: list[tuple[int, Job]] = []
        paused: list[tuple[int, Job]] = []
        walk = list(self.active)
        contributed = {
            self._first_missing(job) for _, job in walk if job.started and job.context_tokens < job.prompt_tokens
        }
        free = self.num_blocks - sum(self._blocks(job.held_tokens()) for _, job in walk)
        while walk:
            job = walk[0][1]
            if self._waits(job, contributed):
                walk.pop(0)
                continue
            more = self._step_blocks(job) - self._blocks(job.held_tokens())
            if more <= free and len(running) < self.max_running:
                free -= more
                running.append(walk.pop(0))
                if job.context_tokens < job.prompt_tokens:
                    contributed.add(self._first_missing(job))
                continue
            started = [index for index, (_, other) in enumerate(walk) if other.started]
            if not started:
                break
            paused.append(walk[started[-1]])
            free += self._blocks(paused[-1][1].held_tokens())
            del walk[started[-1] :]
        return running, paused

    def _step_blocks(self, job: Job) -> int:
        return self._blocks(job.prompt_tokens + job.generated_tokens + job.draft_tokens)

    def _prefixes(self, job: Job) -> list[tuple[int, ...]]:
        """What its full blocks hold, each with all before it; the last token of a prompt is never shared."""
        size, tokens = self.tokens_per_block, tuple(job.tokens or ())
        return [tokens[:end] for end in range(size, len(tokens), size)]

    def _first_missing(self, job: Job) -> tuple[int, ...] | None:
        return next((prefix for prefix in self._prefixes(job) if prefix not in self.cached), None)

    def _waits(self, job: Job, contributed: set[tuple[int, ...] | None]) -> bool:
        """Whether another one is just computing the first block that a new request lacks."""
        if job.started or self.policy == STATIC_BATCH:
            return False
        return self._first_missing(job) in contributed - {None}

    def _step(self, job: Job) -> None:
        if job.context_tokens == job.prompt_tokens:
            job.generated_tokens += 1
            return
        if not job.started:
            job.started = True
            job.context_tokens = self.tokens_per_block * sum(prefix in self.cached for prefix in self._prefixes(job))
        job.context_tokens = min(job.prompt_tokens, job.context_tokens + (job.chunk_tokens or job.prompt_tokens))
        if job.context_tokens == job.prompt_tokens:
            self.cached.update(self._prefixes(job))
            job.generated_tokens = 1


def run(
    jobs: Sequence[Job], num_blocks: int, tokens_per_block: int, policy: str, max_running: int
) -> list[tuple[list[int], list[int]]]:
    """Who runs and who is paused in each iteration, until all have ended; ids are places in ``jobs``.

    The jobs are changed. Raises ``ValueError`` where nothing can run any more.
    """
    model = CapacityModel(num_blocks, tokens_per_block, policy, max_running)
    iterations: list[tuple[list[int], list[int]]] = []
    to_come = list(enumerate(jobs))
    while to_come or model.active:
        for job_id, job in [(job_id, job) for job_id, job in to_come if job.arrival_iteration <= len(iterations)]:
            model.arrive(job_id, job)
            to_come.remove((job_id, job))
        iterations.append(model.iterate())
        if not any(iterations[-1]) and not to_come and model.active:
            raise ValueError(f"none of {[job_id for job_id, _ in model.active]} will ever fit")
    return iterations
