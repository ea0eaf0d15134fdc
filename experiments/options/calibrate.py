"""The options of ``kvtwin calibrate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.device import DeviceOptions
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import File, Number, Text, Whole


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(DeviceOptions):
    """Measurement."""

    model: str = option("tiny", Text("NAME"), "name from `kvtwin models`, or a path to a config.json")
    max_model_len: int | None = option(
        None, Whole("TOKENS", 2), "longest context (default: 4096 on a CPU, 32768 on a GPU)"
    )
    max_num_seqs: int | None = option(
        None, Whole("SEQS"), "most requests per step (default: 32 on a CPU, 256 on a GPU)"
    )
    max_num_batched_tokens: int | None = option(
        None, Whole("TOKENS"), "most tokens per step (default: 2048 on a CPU, 8192 on a GPU)"
    )
    block_size: int = option(16, Whole("TOKENS"), "tokens per block")
    num_gpu_blocks_override: int | None = option(
        None, Whole("BLOCKS", 2), "blocks in the cache (default: 2049 on a CPU; on a GPU, as many as fit)"
    )
    limit_s: float = option(180.0, Number("SECONDS", 0, above=True), "stop measuring after this time")
    seed: int = option(0, Whole("N", 0), "seed of random weights")
    run: Path | None = option(
        None,
        File("RECORD"),
        "fit to a record, without measuring anything: the folder of a measured run; or, with --server, what vllm bench "
        "serve saved in detail, AIPerf, GuideLLM or you (requests.jsonl), or what the server printed",
        flag="--from",
    )
    server: Path | None = option(
        None, File(), "YAML file of the trace that a server was sent and its options, for a record that --from names"
    )
    out: Path | None = option(None, File(), "new YAML file (default: print it)")
