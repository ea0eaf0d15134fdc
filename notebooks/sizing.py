# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Sizing a deployment from a trace
#
# Which GPU serves this load, what will its cache hit, and how much more could come?

# %%
import matplotlib.pyplot as plt

import kvtwin as kv

WORKLOAD = kv.open_workload("demo")  # or a file
GPUS = ["l4", "rtx-4090", "l40s"]  # the cheapest first
TTFT_MS, TPOT_MS = 500, 50  # what 99 % of requests should keep
SERVER = {"model": "meta-llama/Llama-3.1-8B", "max_model_len": 8192}

# %% [markdown]
# ## What is asked for

# %%
trace = kv.inspect(WORKLOAD)
print(f"{trace['num_requests']:,} requests, {trace['requests_per_s']:.1f}/s")
print(f"tokens on average: {trace['input_tokens']['mean']:,.0f} in, {trace['output_tokens']['mean']:,.0f} out")

# %% [markdown]
# ## How large a cache is worth its memory
#
# The hit rate at every size, if requests came one after another, and the sizes that the GPUs have.

# %%
sizes = [100 * 2**power for power in range(9)]
curve = kv.curve(WORKLOAD, **SERVER, gpu=",".join(GPUS), at=sizes)
ceiling, good_blocks = curve.summary["ceiling_hit_rate"], curve.summary["blocks_for_90_percent_of_hits"]
figure, axis = plt.subplots(figsize=(7, 3.5))
axis.plot(curve.points.blocks, 100 * curve.points.hit_rate, marker="o", color="#0072B2")
axis.axhline(100 * ceiling, color="black", linestyle=":")
for mark in curve.marks.itertuples():
    axis.axvline(mark.blocks, color="#D55E00", linewidth=1)
    axis.text(mark.blocks, 2, f" {mark.name}", rotation=90, va="bottom", fontsize=8)
axis.set(xscale="log", ylim=(0, 100), xlabel="cache (blocks of 16 tokens)", ylabel="hit rate (% of prompt tokens)")
plt.show()

# %% [markdown]
# ## What each GPU does with the load as it is

# %%
runs = kv.sweep(WORKLOAD, {"gpu": GPUS}, **SERVER).set_index("gpu")
suited = list(runs.index[(runs.p99_ttft_ms <= TTFT_MS) & (runs.p99_tpot_ms <= TPOT_MS)])
shown = ["num_gpu_blocks", "prefix_cache_hit_rate", "num_preemptions", "p99_ttft_ms", "p99_tpot_ms"]
print(runs[shown].round(3).to_string())

# %% [markdown]
# ## How much more could come
#
# The highest rate, as a multiple of the trace's own, at which the chosen GPU keeps everything.

# %%
chosen = suited[0] if suited else GPUS[-1]
levels = [f"ttft:{TTFT_MS}", f"tpot:{TPOT_MS}"]
search = kv.limit(WORKLOAD, **SERVER, gpu=chosen, goodput=levels, precision=0.25)
(server,) = search["servers"]
for limit in server["limits"]:
    print(f"{limit['criterion']:26} holds at {limit['highest_held']}, fails at {limit['lowest_failed']}")

# %% [markdown]
# ## Conclusion

# %%
run, together = runs.loc[chosen], server["limits"][-1]
if suited:
    print(f"Take the {chosen}: the first of {', '.join(GPUS)} that keeps p99 TTFT and TPOT within", end=" ")
    print(f"{TTFT_MS} and {TPOT_MS} ms ({run.p99_ttft_ms:,.0f} and {run.p99_tpot_ms:,.1f} ms).")
else:
    print(f"None of {', '.join(GPUS)} keeps {TTFT_MS} and {TPOT_MS} ms; the {chosen} comes with", end=" ")
    print(f"{run.p99_ttft_ms:,.0f} and {run.p99_tpot_ms:,.1f} ms.")
print(
    f"Its {run.num_gpu_blocks:,} blocks hit {run.prefix_cache_hit_rate:.0%} of the prompt tokens; "
    f"{ceiling:.0%} could be hit at all, nine tenths of that with {good_blocks:,} blocks."
)
held, failed = together["highest_held"], together["lowest_failed"]
print("No preemption and both latencies:", end=" ")
if held is None:
    print(f"at no rate down to {search['lowest_rate']:g} times the trace's own.")
else:
    print(
        f"kept at {held:.2g} times the trace's own rate, and not at {failed:.2g} times." if failed else "always kept."
    )
