# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Prediction against measurement
#
# vLLM 0.19.0 served 300 ShareGPT requests at 10/s with Llama-3.1-8B on an RTX 4090; requests and a log line per second
# are public ([LLMServingSim](https://github.com/casys-kaist/LLMServingSim), `bench/examples`). The same load is
# simulated here with the data sheet's roofline: nothing is calibrated.

# %%
import csv
import json
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kvtwin as kv

TRACES = Path(os.environ.get("KVTWIN_TRACES", "../shared/traces")) / "llmservingsim"
WORKLOAD = TRACES / "sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz"
MEASURED = TRACES / "measured" / "RTX4090_Llama-3.1-8B"
for needed in (WORKLOAD, MEASURED):
    if not needed.exists():
        raise SystemExit(f"{needed} is not here: name the folder of traces in KVTWIN_TRACES")

# %% [markdown]
# ## The measured run

# %%
rows = [json.loads(line) for line in (MEASURED / "requests.jsonl").read_text().splitlines()]
queued, first, last, tokens = (
    np.array([row[key] for row in rows]) for key in ("queued_ts", "first_token_ts", "last_token_ts", "output_toks")
)
ticks = list(csv.DictReader((MEASURED / "timeseries.csv").read_text().splitlines()))
seconds, running, waiting = (np.array([float(tick[key]) for tick in ticks]) for key in ("t", "running", "waiting"))
measured = {
    "mean TTFT (s)": (first - queued).mean(),
    "mean TPOT (ms)": 1000 * ((last - first) / (tokens - 1)).mean(),
    "duration (s)": last.max() - queued.min(),
    "most running": running.max(),
    "most waiting": waiting.max(),
}

# %% [markdown]
# ## The same load, simulated
#
# The settings are those of the measured server; so is the number of blocks, which it logged.

# %%
run = kv.replay(
    WORKLOAD,
    gpu="rtx-4090",
    num_gpu_blocks_override=2588,
    max_model_len=32768,
    max_num_batched_tokens=2048,
    max_num_seqs=256,
)
summary, requests, steps = run.summary, run.requests, run.steps
simulated = {
    "mean TTFT (s)": summary["mean_ttft_ms"] / 1000,
    "mean TPOT (ms)": summary["mean_tpot_ms"],
    "duration (s)": summary["duration"],
    "most running": summary["max_running_requests"],
    "most waiting": summary["max_waiting_requests"],
}
errors = {name: simulated[name] / measured[name] - 1 for name in measured}
for name in measured:
    print(f"{name:15} measured {measured[name]:7.1f}   simulated {simulated[name]:7.1f}   {errors[name]:+.1%}")

# %% [markdown]
# ## Request by request, and over time

# %%
blue, orange = "#0072B2", "#D55E00"
figure, (waits, at_server) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
share = np.arange(1, len(rows) + 1) / len(rows) * 100
simulated_ttft_s = (requests.first_token_ns - requests.arrival_ns) / 1e9
waits.step(np.sort(first - queued), share, color=blue, label="measured")
waits.step(np.sort(simulated_ttft_s), share, color=orange, label="simulated")
waits.set(xlabel="time to first token (s)", ylabel="requests (%)", ylim=(0, 101))
waits.legend()
at_server.plot(seconds, running, color=blue, label="running, measured")
at_server.plot(seconds, waiting, color=blue, linestyle="--", label="waiting, measured")
simulated_s = steps.end_ns / 1e9
at_server.plot(simulated_s, steps.running, color=orange, label="running, simulated")
at_server.plot(simulated_s, steps.waiting, color=orange, linestyle="--", label="waiting, simulated")
at_server.set(xlabel="time (s)", ylabel="requests", ylim=(0, None))
at_server.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## Conclusion

# %%
worst = max(errors, key=lambda name: abs(errors[name]))
largest_gap_s = np.abs(np.sort(first - queued) - np.sort(simulated_ttft_s)).max()
print(
    f"Of {', '.join(errors)}, the worst prediction is {worst}: {errors[worst]:+.1%} "
    f"({measured[worst]:.1f} measured, {simulated[worst]:.1f} simulated)."
)
print(
    f"The two distributions of TTFT are at most {largest_gap_s:.1f} s apart; its mean was "
    f"{measured['mean TTFT (s)']:.1f} s."
)
most = {kind: figures["most running"] for kind, figures in (("simulated", simulated), ("measured", measured))}
print(
    f"{most['simulated']:.0f} requests ran at once where the server had {most['measured']:.0f}: that is decided by "
    "blocks, as vLLM decides it; how long a step takes is the data sheet's word."
)
