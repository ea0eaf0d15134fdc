"""Flags of current or older vLLM that are not modelled: refused by name, never ignored."""

from __future__ import annotations

_GONE = "vLLM 0.33 no longer has this flag"
_NO_DIFFERENCE = "has no effect on the simulation: leave it out"
_THE_TRACE = "give the workload as TRACE; its format is recognised, or set by --format"

NOT_MODELLED: dict[str, str] = {
    "--data-parallel-rank": "all replicas are simulated together",
    "--data-parallel-start-rank": "all replicas are simulated together",
    "--data-parallel-backend": _NO_DIFFERENCE,
    "--data-parallel-address": _NO_DIFFERENCE,
    "--data-parallel-rpc-port": _NO_DIFFERENCE,
    "--decode-context-parallel-size": "context parallelism is not modelled",
    "--cpu-offload-gb": "weights in host memory are not modelled",
    "--kv-transfer-config": "KV connectors are not modelled",
    "--kv-events-config": "--kv-events saves KV events in the run's folder",
    "--mamba-block-size": "a state takes one attention block; raise --block-size to make it larger",
    "--mamba-cache-mode": "vLLM 0.33 ignores it: states are cached if --enable-prefix-caching is on",
    "--limit-mm-per-prompt": "--encoder-cache-size sets how many embeddings of images are kept",
    "--ec-transfer-config": "remote caches of embeddings are not modelled",
    "--scheduler-cls": "only vLLM's own schedulers are modelled",
    "--disable-sliding-window": "--disable-hybrid-kv-cache-manager treats windows as full attention",
    "--prefill-context-parallel-size": "context parallelism is not modelled",
    "--attention-backend": "backends are not modelled; set --block-size and --step-time instead",
    "--compilation-config": "CUDA graphs are modelled by --enforce-eager, --cuda-graph-bytes and --step-time",
    "--hf-overrides": "change the config.json and give its path to --model",
    "--dataset-name": _THE_TRACE,
    "--dataset-path": _THE_TRACE,
    "--save-result": "--out saves the run, --json prints its result",
    "--host": _NO_DIFFERENCE,
    "--port": _NO_DIFFERENCE,
    "--api-key": _NO_DIFFERENCE,
    "--served-model-name": _NO_DIFFERENCE,
    "--trust-remote-code": _NO_DIFFERENCE,
    "--load-format": _NO_DIFFERENCE,
    "--download-dir": _NO_DIFFERENCE,
    "--distributed-executor-backend": _NO_DIFFERENCE,
    "--chat-template": _NO_DIFFERENCE,
    "--reasoning-parser": _NO_DIFFERENCE,
    "--tool-call-parser": _NO_DIFFERENCE,
    "--enable-auto-tool-choice": _NO_DIFFERENCE,
    "--disable-log-stats": _NO_DIFFERENCE,
    "--max-num-partial-prefills": _GONE,
    "--max-long-partial-prefills": _GONE,
    "--num-lookahead-slots": _GONE,
    "--num-scheduler-steps": _GONE,
    "--use-v2-block-manager": _GONE,
}
"""Each flag with the reason."""

NOT_MODELLED |= {
    short: NOT_MODELLED[flag]
    for flag, short in {
        "--decode-context-parallel-size": "-dcp",
        "--prefill-context-parallel-size": "-pcp",
        "--compilation-config": "-cc",
    }.items()
}
