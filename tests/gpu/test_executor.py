"""Requests say the same in a crowded pool as each alone: through evictions, preemptions, swaps, forks, shared blocks.

Here the tokens prove the allocator; the last tests break something on purpose and must be noticed.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.speculation import Speculation
from kvtwin.gpu.errors import DeviceError, OutOfDeviceMemory
from kvtwin.gpu.executor import DeviceExecutor, check_executable
from kvtwin.gpu.paged_cache import PagedCache
from kvtwin.gpu.poison import Poison
from tests.gpu.device_run import Arrival, DeviceRun, alone, crowd, small_decoder
from tests.parts import slow_but

MEMORIES = {
    "recompute": {},
    "swap": {"preemption_mode": "swap", "num_swap_blocks": 40},
    "offload": {"num_offload_blocks": 12},
    "swap and offload": {"preemption_mode": "swap", "num_swap_blocks": 15, "num_offload_blocks": 12},
}
SEEDS = range(20)


def crowd_of(seed, memory):
    return crowd(seed, memory=MEMORIES[memory], sampling="fork" if seed % 4 > 1 else "prefix")


@pytest.fixture(scope="module")
def decoder():
    return small_decoder()


@pytest.fixture(scope="module")
def said(decoder):
    """What a request says alone; remembered, since many tests ask."""
    known = {}

    def say(arrival):
        key = (tuple(arrival.prompt), arrival.max_tokens)
        if key not in known:
            known[key] = alone(decoder, arrival)
        return known[key]

    return say


def differing(outputs, arrivals, said):
    """Ids of requests that said something else than alone."""
    expected = {
        f"{number}.{sample}": said(arrival) for number, arrival in enumerate(arrivals) for sample in range(arrival.n)
    }
    assert outputs.keys() == expected.keys()
    return [name for name in expected if outputs[name] != expected[name]]


@pytest.mark.parametrize("seed", slow_but(range(2), SEEDS))
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_crowd_says_what_each_says_alone(decoder, said, memory, seed):
    config, arrivals = crowd_of(seed, memory)
    run = DeviceRun(decoder, config)
    run.executor.poison(run.scheduler.kv_cache.pool)
    assert differing(run.serve(arrivals), arrivals, said) == []
    assert all(
        isinstance(logit, float) and logit == logit
        for step in run.executor.executed
        for row in step.logits
        for logit in row
    )


@pytest.mark.slow
def test_the_crowds_meet_what_they_are_for(decoder):
    met = Counter()
    for memory in MEMORIES:
        for seed in SEEDS:
            config, arrivals = crowd_of(seed, memory)
            run = DeviceRun(decoder, config)
            run.serve(arrivals)
            statistics = run.scheduler.statistics
            met["evictions"] += run.scheduler.kv_cache.pool.num_evictions
            met["preemptions"] += statistics.num_preemptions
            met["recomputed"] += statistics.num_recomputed_tokens
            met["copies"] += statistics.num_block_copies
            met["hits"] += statistics.prefix_cache.hits
            for host in run.scheduler.kv_cache.host_memory:
                met["loads"] += host.pool.num_loaded_blocks
    assert min(met.values()) > 100, met
    assert len(met) == 6


# ---------------------------------------------------------------- evidence


@pytest.mark.parametrize("seed", slow_but([0, 3], range(8)))
def test_the_device_looks_up_the_tables_that_the_engine_decided(decoder, seed):
    config, arrivals = crowd_of(seed, "swap")
    decided = []

    class Watched(DeviceExecutor):
        def submit(self, step):
            decided.append([list(request.block_tables[0]) for request in step.requests])
            return super().submit(step)

    run = DeviceRun(decoder, config, Watched)
    run.serve(arrivals)
    assert len(decided) == len(run.executor.executed)
    for tables, executed in zip(decided, run.executor.executed, strict=True):
        for table, read in zip(tables, executed.block_tables, strict=True):
            assert table[: len(read)] == list(read)
        for table, slots in zip(executed.block_tables, executed.slots, strict=True):
            written = [slot for slot in slots if slot >= 0]
            assert {slot // config.block_size for slot in written} <= set(table)
            assert len(set(written)) == len(written)


# ---------------------------------------------------------------- sampling


def test_seeded_samples_do_not_depend_on_what_runs_beside(decoder):
    config, arrivals = crowd_of(3, "recompute")
    roomy = replace(config, num_blocks=400, async_scheduling=not config.async_scheduling)
    outputs = [DeviceRun(decoder, one, temperature=1.0, seed=7).serve(arrivals) for one in (config, roomy)]
    assert outputs[0] == outputs[1]
    assert DeviceRun(decoder, roomy, temperature=1.0, seed=8).serve(arrivals) != outputs[0]
    samples = [
        outputs[0][f"{number}.{index}"] for number, one in enumerate(arrivals) if one.n == 3 for index in range(3)
    ]
    assert len(set(map(tuple, samples))) == len(samples) > 0


# ---------------------------------------------------------------- negative controls


@pytest.mark.parametrize("seed", slow_but(range(4), SEEDS))
def test_a_swapped_entry_of_a_block_table_is_heard(decoder, said, seed):
    class NamesAnotherBlock(DeviceExecutor):
        """Changes one entry of a request's table, once: it names the next entry's block.

        To exchange two entries would not do: keys know their positions, and attention does not mind the order.
        """

        victim = None

        def submit(self, step):
            self.step = step
            return super().submit(step)

        def _compute(self, inputs):
            for request, computed in zip(self.step.requests, self.step.num_computed_tokens, strict=True):
                early = request.num_output_tokens <= request.max_tokens // 3
                if self.victim is None and computed > 2 * config.block_size and early:
                    self.victim = request
                    row = self._rows[request]
                    self._rows.block_tables[row, 0] = self._rows.block_tables[row, 1]
            return super()._compute(inputs)

    config, arrivals = crowd_of(seed, "recompute")
    run = DeviceRun(decoder, config, NamesAnotherBlock)
    outputs = run.serve(arrivals)
    assert run.executor.victim
    assert differing(outputs, arrivals, said)


FAULTS = {
    "copies are left out": lambda cache: setattr(cache, "copy", lambda copies, attention: None),
    "what is swapped out is not saved": lambda cache: setattr(cache, "save", lambda copies: None),
    "what is swapped in is not loaded": lambda cache: setattr(cache, "load", lambda copies: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_copy_that_is_not_made_is_heard(decoder, said, fault):
    heard = 0
    for seed in SEEDS:
        config, arrivals = crowd_of(seed, "swap")
        run = DeviceRun(decoder, config)
        run.executor.poison(run.scheduler.kv_cache.pool)
        FAULTS[fault](run.executor._cache)
        heard += bool(differing(run.serve(arrivals), arrivals, said))
        if heard == 3:
            return
    pytest.fail(f"heard {heard} times only")


def test_poison_is_in_what_nobody_may_read_and_nowhere_else(decoder):
    config, arrivals = crowd_of(5, "recompute")
    run = DeviceRun(decoder, config)
    pool, cache = run.scheduler.kv_cache.pool, run.executor._cache
    run.executor.poison(pool)
    seen = Counter()

    class Looks(Poison):
        def fill_free(self):
            super().fill_free()
            for block in range(1, pool.num_blocks):
                content = cache.layer(0).keys[block]
                if pool.ref_counts[block] == 0:
                    kind = "hittable" if pool.keys[block] else "free"
                    seen[kind] += 1
                    assert bool(content.isnan().all()) == (kind == "free")

    run.executor._poison = Looks(cache, pool)
    run.serve(arrivals)
    assert min(seen["free"], seen["hittable"]) > 10
    assert bool(cache.layer(0).keys[0].isfinite().all())


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_groups": (CacheGroupSpec("sliding_window", 16, 64),)}, "cache groups: expected one of full attention"),
        ({"speculation": Speculation(method="ngram", num_speculative_tokens=2)}, "speculative decoding: expected none"),
        ({"allocator": "contiguous-max", "enable_prefix_caching": False, "block_size": 1}, "allocator: expected paged"),
    ],
)
def test_what_is_not_executed_is_refused(settings, message):
    with pytest.raises(DeviceError, match=message):
        check_executable(EngineConfig(num_blocks=100, **settings))


def test_a_cache_that_does_not_fit_is_one_line():
    with pytest.raises(DeviceError, match=r"no memory for 1,000,000,000,000 blocks on cpu") as raised:
        PagedCache(4, 10**12, 16, 8, 128, dtype=torch.float32, device=torch.device("cpu"))
    assert "\n" not in str(raised.value)


def test_host_blocks_of_a_gpu_are_pinned_in_powers_of_two(monkeypatch):
    """Refused before anything is allocated, so that it can be tested without a GPU."""
    monkeypatch.setattr("kvtwin.gpu.host_memory._available_bytes", lambda: 3 << 30)
    block_bytes = 2 * 1024 * 4
    with pytest.raises(OutOfDeviceMemory, match=f"{4 << 30:,} bytes are needed"):
        PagedCache(
            1,
            2,
            16,
            4,
            16,
            dtype=torch.float32,
            device=torch.device("cuda"),
            num_host_blocks=(5 << 29) // block_bytes,
        )


def test_memory_that_runs_out_in_a_step_leaves_what_was_done(decoder):
    class Short(DeviceExecutor):
        def _compute(self, inputs):
            if len(self.executed) == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore text")
            return super()._compute(inputs)

    config, arrivals = crowd_of(4, "recompute")
    run = DeviceRun(decoder, config, Short)
    with pytest.raises(OutOfDeviceMemory, match=r"^step \d+: CUDA out of memory. Tried to allocate 2.00 GiB$"):
        run.serve(arrivals)
    assert len(run.executor.executed) == 5


def test_a_request_alone_without_any_pressure(decoder, said):
    config = EngineConfig(num_blocks=50, block_size=4, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64)
    arrival = Arrival(0, list(range(1, 30)), 12)
    assert DeviceRun(decoder, config).serve([arrival]) == {"0.0": said(arrival)}
