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

from kvtwin.experiments.notebook import kvtwin

TRACE = "demo"  # or a file: see `kvtwin trace inspect`
MODEL = "meta-llama/Llama-3.1-8B"
GPUS = ["l4", "rtx-4090", "l40s"]  # the cheapest first
MAX_MODEL_LEN = 8192
TTFT_MS, TPOT_MS = 500, 50  # what 99 % of requests should keep
SERVER = ["--model", MODEL, "--max-model-len", MAX_MODEL_LEN]

# %% [markdown]
# ## What is asked for

# %%
trace = kvtwin("trace", "inspect", TRACE)
print(f"{trace['num_requests']:,} requests, {trace['requests_per_s']:.1f}/s")
print(f"tokens on average: {trace['input_tokens']['mean']:,.0f} in, {trace['output_tokens']['mean']:,.0f} out")

# %% [markdown]
# ## How large a cache is worth its memory
#
# The hit rate at every size, if requests came one after another, and the sizes that the GPUs have.

# %%
sizes = [100 * 2**power for power in range(9)]
curve = kvtwin("curve", TRACE, *SERVER, "--gpu", ",".join(GPUS), "--at", ",".join(map(str, sizes)))
good_blocks = curve["blocks_for_90_percent_of_hits"]
figure, axis = plt.subplots(figsize=(7, 3.5))
axis.plot(sizes, [100 * point["hit_rate"] for point in curve["points"]], marker="o", color="#0072B2")
axis.axhline(100 * curve["ceiling_hit_rate"], color="black", linestyle=":")
for mark in curve["marks"]:
    axis.axvline(mark["blocks"], color="#D55E00", linewidth=1)
    axis.text(mark["blocks"], 2, f" {mark['name']}", rotation=90, va="bottom", fontsize=8)
axis.set(xscale="log", ylim=(0, 100), xlabel="cache (blocks of 16 tokens)", ylabel="hit rate (% of prompt tokens)")
plt.show()

# %% [markdown]
# ## What each GPU does with the load as it is

# %%
runs = {gpu: kvtwin("replay", TRACE, *SERVER, "--gpu", gpu) for gpu in GPUS}
print(f"{'GPU':10} {'blocks':>8} {'hit rate':>9} {'preemptions':>12} {'p99 TTFT ms':>12} {'p99 TPOT ms':>12}")
for gpu, run in runs.items():
    print(
        f"{gpu:10} {run['num_gpu_blocks']:8,} {run['prefix_cache_hit_rate']:9.1%} {run['num_preemptions']:12,} "
        f"{run['p99_ttft_ms']:12,.0f} {run['p99_tpot_ms']:12,.1f}"
    )
suited = [gpu for gpu, run in runs.items() if run["p99_ttft_ms"] <= TTFT_MS and run["p99_tpot_ms"] <= TPOT_MS]

# %% [markdown]
# ## How much more could come
#
# The highest rate, as a multiple of the trace's own, at which the chosen GPU keeps everything.

# %%
chosen = suited[0] if suited else GPUS[-1]
search = kvtwin(
    "limit", TRACE, *SERVER, "--gpu", chosen, "--goodput", f"ttft:{TTFT_MS}", f"tpot:{TPOT_MS}", "--precision", 0.25
)  # fmt: skip
(server,) = search["servers"]
for limit in server["limits"]:
    print(f"{limit['criterion']:26} holds at {limit['highest_held']}, fails at {limit['lowest_failed']}")

# %% [markdown]
# ## Conclusion

# %%
run, together = runs[chosen], server["limits"][-1]
if suited:
    print(f"Take the {chosen}: the first of {', '.join(GPUS)} that keeps p99 TTFT and TPOT within", end=" ")
    print(f"{TTFT_MS} and {TPOT_MS} ms ({run['p99_ttft_ms']:,.0f} and {run['p99_tpot_ms']:,.1f} ms).")
else:
    print(f"None of {', '.join(GPUS)} keeps {TTFT_MS} and {TPOT_MS} ms; the {chosen} comes with", end=" ")
    print(f"{run['p99_ttft_ms']:,.0f} and {run['p99_tpot_ms']:,.1f} ms.")
print(
    f"Its {run['num_gpu_blocks']:,} blocks hit {run['prefix_cache_hit_rate']:.0%} of the prompt tokens; "
    f"{curve['ceiling_hit_rate']:.0%} could be hit at all, nine tenths of that with {good_blocks:,} blocks."
)
held, failed = together["highest_held"], together["lowest_failed"]
print("No preemption and both latencies:", end=" ")
if held is None:
    print(f"at no rate down to {search['lowest_rate']:g} times the trace's own.")
else:
    print(
        f"kept at {held:.2g} times the trace's own rate, and not at {failed:.2g} times." if failed else "always kept."
    )
