"""What decides: block pool, block hashes, KV cache manager and scheduler, as vLLM 0.33.0 has them; and memory sizing.

No clock and no I/O: a simulation and a real run drive the same objects. Read `scheduler` first, with `chunks`, then
`kv_cache_manager`, with `hit` and `demand`, `cache_groups`, `block_keys` and `block_pool`. Who watches is told by
`observer` about requests and by `pool_listener` about blocks.

A scheduler, driven by hand:

>>> from kvtwin.engine.block_keys import TokenContent
>>> from kvtwin.engine.config import EngineConfig
>>> from kvtwin.engine.request import Request
>>> from kvtwin.engine.scheduler import Scheduler
>>> scheduler = Scheduler(EngineConfig(num_blocks=10, block_size=4, async_scheduling=False, vllm_strict=True))
>>> prompt = range(100, 110)
>>> for name in "ab":
...     scheduler.add_request(Request(name, 10, max_tokens=2, content=TokenContent(scheduler.keys, prompt)))
>>> step = scheduler.schedule()
>>> [(one.request.request_id, one.num_hit_tokens, one.block_tables) for one in step.admitted]
[('a', 0, [[1, 2, 3]]), ('b', 8, [[1, 2, 4]])]
>>> step.num_tokens
[10, 2]
>>> scheduler.update(step, tokens=[[7], [7]])
>>> scheduler.update(scheduler.schedule(), tokens=[[8], [8]])
>>> [(request.request_id, str(request.finish_reason)) for request in scheduler.take_ended()]
[('a', 'length'), ('b', 'length')]
>>> scheduler.kv_cache.pool.free_queue()
[4, 3, 5, 6, 7, 8, 9, 2, 1]
"""
