"""Random servers and workloads, decided by the plain scheduler and by the compiled loop: everything must be equal.

Times lie on a grid, so that arrivals and ends of steps often fall together. `python -m tests.sim.compiled_cases FIRST
COUNT [STEP]` compares so many from a seed on, each STEP-th (every one), and fails at the first difference. With STEP 8
and FIRST 0 all are large servers with everything that they can have.
"""

import sys
from contextlib import contextmanager
from dataclasses import fields
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.sim import compiled_engine, serving
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord


class Case(NamedTuple):
    """A server, and what it is sent."""

    config: EngineConfig
    records: list
    step_time: dict
    max_concurrency: int | None
    num_warm_up_requests: int
    ignore_eos: bool


def random_case(seed):
    """Case number ``seed``."""
    random = Random(seed)
    if seed % 8:
        return _phantom_case(random) if seed % 8 == 7 else _tiny_case(random)
    config = _config(random)
    step_time = random.choice(
        [
            {},
            {"step_ns": 10},
            {"step_ns": 5, "prefill_token_ns": 1},
            {"step_ns": 3.3, "context_token_ns": 0.7, "sequence_ns": 1.1, "prefill_pair_ns": 0.13},
        ]
    )
    scale = random.choice([1, 1000])
    return Case(
        config,
        _records(random, config),
        {name: scale * value for name, value in step_time.items()},
        random.choice([None, None, 1, 3]),
        random.choice([0, 0, 3]),
        random.random() < 0.6,
    )


def _tiny_case(random):
    """Hardly any memory, budget or time: a few requests of a few tokens, many of which arrive together."""
    block_size = random.choice([1, 1, 2, 3])
    seats = random.randint(1, 4)
    max_model_len = random.randint(2, 24)
    chunks = random.random() < 0.7
    budget = max(seats, random.randint(1, 12), 0 if chunks else max_model_len)
    config = EngineConfig(
        num_blocks=random.randint(2, 14),
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=seats,
        max_num_active_seqs=random.choice([None, None, 1]),
        max_num_batched_tokens=budget,
        enable_prefix_caching=random.random() < 0.85,
        enable_chunked_prefill=chunks,
        long_prefill_token_threshold=random.choice([0, 0, 1, min(3, max_model_len)]),
        long_prefill_token_threshold_adaptive=random.random() < 0.3,
        scheduling_policy=random.choice(["fcfs", "priority"]),
        watermark=random.choice([0, 0, 0.1, 0.4]),
        scheduler_reserve_full_isl=random.random() < 0.5,
        prefill_schedule_interval=random.choice([1, 1, 2, 3]),
        async_scheduling=random.random() < 0.6,
        max_loras=random.choice([0, 1, 1, 2]),
        vllm_strict=False,
    )
    has_loras, has_sessions = random.random() < 0.3, random.random() < 0.3
    records, now_ns = [], 0
    for index in range(random.randint(1, 9)):
        now_ns += random.choice([0, 0, 0, 1, 2, 5, 10, 30])
        prompt_tokens = random.choice([1, 1, random.randint(1, 8), random.randint(1, max_model_len)])
        output_tokens = random.choice([1, 2, random.randint(1, 10), max_model_len])
        known = {}
        if random.random() < 0.6:
            known["token_ids"] = [random.randrange(2) * (random.random() < 0.3) for _ in range(prompt_tokens)]
            if random.random() < 0.7:
                known["output_token_ids"] = [0] * output_tokens
        elif random.random() < 0.5:
            known["hash_block_tokens"] = random.choice([1, 2, 3])
            known["hash_ids"] = [random.choice([0, 0, 1])] * -(-prompt_tokens // known["hash_block_tokens"])
        if has_sessions and random.random() < 0.8:
            known["session"] = f"session {random.randrange(2)}"
            if random.random() < 0.7:
                known["think_time_ns"] = random.choice([0, 5, 10])
        records.append(
            RequestRecord(
                request_id=f"r{index}",
                arrival_ns=now_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                priority=random.choice([0, 0, random.randrange(3)]),
                n=random.choice([1, 1, 1, 2]),
                lora_name=random.choice([None, "a", "b"]) if has_loras else None,
                source=f"line {index}",
                **known,
            )
        )
    return Case(
        config,
        records,
        random.choice([{}, {"step_ns": 10}, {"step_ns": 5}, {"step_ns": 5, "prefill_token_ns": 5}]),
        random.choice([None, None, 1, 2]),
        random.choice([0, 0, 0, 1, 2]),
        random.random() < 0.5,
    )


def _phantom_case(random):
    """Who matters least prefills slowly, and loses its blocks in the step that was to fill some of them.

    Others leave blocks without a key, which are handed out first. So it, or who has the same prompt, finds its own.
    """
    block_size, chunk = random.choice([2, 4, 8]), random.randint(2, 4)
    config = EngineConfig(
        num_blocks=4 * chunk + random.choice([1, 1, 1, 2, 3]),
        block_size=block_size,
        max_model_len=200,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=chunk * block_size,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=random.random() < 0.3,
        async_scheduling=random.random() < 0.5,
        vllm_strict=random.random() < 0.4,
    )
    slow_prompt = list(range(100, 100 + 3 * chunk * block_size - random.choice([0, 0, 1])))
    sent = [(0, [index], block_size - random.choice([0, 1, 1]), 0) for index in range(chunk)]
    sent.append((0, slow_prompt, random.randint(1, 9), 9))
    sent += [(10, [50] * block_size, random.randint(1, 4), 0)]
    for _ in range(random.randint(0, 4)):
        prompt = [*slow_prompt, 0][: random.choice([len(slow_prompt), len(slow_prompt) + 1, random.randint(1, 20)])]
        sent.append((random.randrange(20, 200), prompt, random.randint(1, 5), random.randint(1, 9)))
    records = [
        RequestRecord(
            request_id=f"r{index}",
            arrival_ns=arrival_ns,
            prompt_tokens=len(token_ids),
            output_tokens=max(1, output_tokens),
            token_ids=token_ids,
            priority=priority,
            source=f"line {index}",
        )
        for index, (arrival_ns, token_ids, output_tokens, priority) in enumerate(sent)
    ]
    records.sort(key=lambda record: record.arrival_ns)
    return Case(config, records, {"step_ns": 10}, None, 0, True)


def _config(random):
    block_size = random.choice([1, 2, 4, 16])
    max_model_len = random.choice([64, 200, 500])
    seats = random.choice([1, 2, 5, 16])
    chunks = random.random() < 0.7
    budget = max(seats, random.choice([8, 32, 100, 600]), 0 if chunks else max_model_len)
    threshold = random.choice([0, 0, 4, 16])
    return EngineConfig(
        num_blocks=random.randint(3, max(4, random.choice([60, 300]) // block_size)),
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=seats,
        max_num_active_seqs=random.choice([None, None, 1, (seats + 1) // 2]),
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=random.choice([None, None, max(1, budget - 3)]) if chunks else None,
        enable_prefix_caching=random.random() < 0.8,
        enable_chunked_prefill=chunks,
        long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive=random.random() < 0.3,
        scheduling_policy=random.choice(["fcfs", "priority"]),
        watermark=random.choice([0, 0, 0.1, 0.3]),
        scheduler_reserve_full_isl=random.random() < 0.6,
        prefill_schedule_interval=random.choice([1, 1, 2, 4]),
        async_scheduling=random.random() < 0.6,
        max_loras=random.choice([0, 1, 2]),
        vllm_strict=False,
    )


def _records(random, config):
    """Up to 60 requests; prefixes of known tokens and of ids that some share, sessions, samples, salts and adapters."""
    most_tokens = min(config.max_model_len // 2, (config.num_blocks - 1) * config.block_size * 2)
    grid_ns = random.choice([1, 1, 10, 1000])
    shared_tokens = [[random.randrange(5) for _ in range(500)] for _ in range(4)]
    has_sessions, has_loras = random.random() < 0.3, random.random() < 0.5
    records, now_ns = [], 0
    for index in range(random.choice([5, 20, 60])):
        now_ns += random.choice([0, 0, 1, 3, 10, 50]) * grid_ns
        prompt_tokens = random.randint(1, most_tokens)
        output_tokens = random.randint(1, random.choice([3, 20, most_tokens]))
        known = {}
        kind = random.random()
        if kind < 0.4:
            shared = random.randint(0, prompt_tokens)
            prompt = random.choice(shared_tokens)[:shared]
            known["token_ids"] = prompt + [random.randrange(3) for _ in range(prompt_tokens - shared)]
            if random.random() < 0.5:
                known["output_token_ids"] = [random.randrange(3) for _ in range(output_tokens)]
        elif kind < 0.8:
            id_tokens, family, num_shared = random.choice([4, 8]), random.randrange(3), random.choice([3, 100])
            known["hash_block_tokens"] = id_tokens
            known["hash_ids"] = [
                1000 * family + number if number < num_shared else 10_000 * (index + 1) + number
                for number in range(-(-prompt_tokens // id_tokens))
            ]
        if kind < 0.8:
            known["cache_salt"] = random.choice([None, None, None, "salt"])
        if has_sessions and random.random() < 0.7:
            known["session"] = f"session {random.randrange(4)}"
            if random.random() < 0.7:
                known["think_time_ns"] = random.choice([0, 5, 100]) * grid_ns
        records.append(
            RequestRecord(
                request_id=f"r{index}",
                arrival_ns=now_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                priority=random.randrange(3),
                n=random.choice([1, 1, 1, 2, 12]),
                lora_name=random.choice([None, "a", "b", "c"]) if has_loras else None,
                source=f"line {index}",
                **known,
            )
        )
    return records


def outcome(case, *, compiled):
    """All that a run leaves behind, by name; and whether the compiled loop decided it."""
    simulation = ServerSimulation(
        case.config,
        SimulatedExecutor(LinearStepTime(case.step_time)),
        max_concurrency=case.max_concurrency,
        num_warm_up_requests=case.num_warm_up_requests,
        ignore_eos=case.ignore_eos,
        compiled=compiled,
    )
    misses = MissSources(case.config)
    simulation.observers.append(misses)
    try:
        recorder = simulation.run(case.records)
    except WorkloadError as error:
        return {"error": str(error)}
    assert bool(simulation.why_plain) != compiled
    scheduler, pool = recorder.scheduler, recorder.scheduler.kv_cache.pool
    found = {name: value for name, value in vars(recorder).items() if not name.startswith("_")}
    for name in ("requests", "steps"):
        columns = found.pop(name)
        found |= {f"{name}: {field.name}": list(getattr(columns, field.name)) for field in fields(columns)}
    del found["scheduler"]
    return found | {
        "statistics": scheduler.statistics,
        "misses": misses.figures(),
        "evictions": pool.num_evictions,
        "free queue": pool.free_queue(),
        "references": list(pool.ref_counts),
        "blocks with a key": [key != 0 for key in pool.keys],
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
    }


def difference(seed):
    """The names of what differs in case ``seed``, and some counts of the plain run."""
    case = random_case(seed)
    plain, compiled = outcome(case, compiled=False), outcome(case, compiled=True)
    differing = [name for name in plain if plain[name] != compiled.get(name)]
    counts = {"steps": 0, "preemptions": 0, "phantoms": 0, "rejected": 0, "evictions": 0, "recomputed": 0}
    if "error" not in plain:
        counts["steps"] = len(plain["steps: tokens"])
        counts["preemptions"] = sum(plain["steps: preempted"])
        counts["phantoms"] = plain["statistics"].phantom_hit_tokens
        counts["recomputed"] = plain["statistics"].num_recomputed_tokens
        counts["rejected"] = sum(plain["rejected"].values())
        counts["evictions"] = plain["evictions"]
    return differing, counts


@contextmanager
def interpreted():
    """The loop decides, and Python interprets it."""
    with (
        patch.object(serving, "machine_code", lambda: True),
        patch.object(compiled_engine, "machine_code", lambda: None),
    ):
        yield


def main(first, count, step=1):
    """Compare cases; 1 at the first that differs."""
    totals = {}
    for seed in range(first, first + count * step, step):
        differing, counts = difference(seed)
        if differing:
            print(f"case {seed} differs in {', '.join(differing)}")
            return 1
        totals = {name: totals.get(name, 0) + number for name, number in counts.items()}
    print(f"{count} cases are equal: {totals}")
    return 0


if __name__ == "__main__":
    from kvtwin.engine.compiled.machine_code import machine_code

    if machine_code() is None:
        with interpreted():
            sys.exit(main(*map(int, sys.argv[1:])))
    sys.exit(main(*map(int, sys.argv[1:])))
