# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Block size: what it gains and costs
#
# A block is the unit of hits and of allocation. Larger ones are fewer: less to hash, to look up and to keep in tables.
# What that saves in microseconds depends on the server's code, so here it is a count. What larger blocks cost is
# simulated: hits are whole blocks, and the end of each request's last block stays empty.

# %%
import matplotlib.pyplot as plt

import kvtwin as kv

WORKLOAD = kv.open_workload("demo")  # or a file
POOL_TOKENS = 28_800  # the same memory for every block size
BLOCK_SIZES = [16, 32, 64, 128]
POOLS = [(size, POOL_TOKENS // size) for size in BLOCK_SIZES]

# %%
ceilings = [kv.curve(WORKLOAD, block_size=size).summary["ceiling_hit_rate"] for size in BLOCK_SIZES]
runs = kv.sweep(WORKLOAD, {"block_size, num_gpu_blocks_override": POOLS}, gpu="rtx-4090", max_model_len=8192)

# %% [markdown]
# ## What it costs

# %%
blue, orange = "#0072B2", "#D55E00"
figure, (hits, waste, ttft) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
places = range(len(BLOCK_SIZES))
hits.plot(places, [100 * ceiling for ceiling in ceilings], marker="o", color=orange, label="nothing evicted")
hits.plot(places, 100 * runs.prefix_cache_hit_rate, marker="o", color=blue, label="here")
hits.set(ylim=(0, 100), ylabel="hit rate (% of prompt tokens)")
hits.legend()
waste.plot(places, 100 * runs.kv_memory_internal_mean_while_waiting, marker="o")
waste.set(ylim=(0, None), ylabel="ends of blocks left empty (% of pool)")
ttft.plot(places, runs.mean_ttft_ms / 1000, marker="o")
ttft.set(ylim=(0, None), ylabel="mean TTFT (s)")
for axis in (hits, waste, ttft):
    axis.set_xticks(places, BLOCK_SIZES)
    axis.set_xlabel("tokens per block")
plt.show()

# %% [markdown]
# ## What it gains

# %%
print(runs[["block_size", "num_gpu_blocks", "prompt_full_blocks", "num_evictions"]].to_string(index=False))

# %% [markdown]
# ## Conclusion

# %%
small, large = BLOCK_SIZES[0], BLOCK_SIZES[-1]
first, last = runs.iloc[0], runs.iloc[-1]
lost = first.prefix_cache_hit_rate - last.prefix_cache_hit_rate
lost_at_best = ceilings[0] - ceilings[-1]
waste_first, waste_last = (run.kv_memory_internal_mean_while_waiting for run in (first, last))
slower = last.mean_ttft_ms / first.mean_ttft_ms - 1
fewer_evictions = first.num_evictions / last.num_evictions
fewer_lookups = first.prompt_full_blocks / last.prompt_full_blocks
trace_mean = kv.inspect(WORKLOAD)["input_tokens"]["mean"]
print(
    f"From {small} to {large} tokens per block there are {fewer_evictions:.0f} times fewer blocks to evict and "
    f"{fewer_lookups:.0f} times fewer to look up. The hit rate changes by {-100 * lost:+.1f} points "
    f"({-100 * lost_at_best:+.1f} if nothing were evicted), empty ends grow from {waste_first:.1%} to {waste_last:.1%} "
    f"of the pool while requests wait, and the mean TTFT changes by {slower:+.0%}."
)
if lost > 0.01 or slower > 0.05:
    print(f"So on this workload, of {trace_mean:,.0f} prompt tokens on average, small blocks are worth their number.")
else:
    print("So on this workload large blocks cost next to nothing.")
