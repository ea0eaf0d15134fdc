"""What is replayed: a file for kvtwin, and one with the same requests in Mooncake's form for Dynamo."""

import gzip
import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

ID_TOKENS = 512


class Case(NamedTuple):
    """A workload, and the cache it meets."""

    name: str
    num_blocks: int
    write: Callable[[Path, Path], tuple[Path, Path]]
    """Given the folder of the public traces and one for new files: kvtwin's file and Dynamo's."""
    rate_scale: float = 1.0
    slow: bool = False


def _mooncake(traces: Path, folder: Path) -> tuple[Path, Path]:
    path = folder / "mooncake.jsonl"
    path.write_bytes(gzip.decompress((traces / "mooncake/conversation_trace.jsonl.gz").read_bytes()))
    return path, path


def _azure(kind: str, rate_scale: float = 1.0) -> Callable[[Path, Path], tuple[Path, Path]]:
    def write(traces: Path, folder: Path) -> tuple[Path, Path]:
        path = folder / f"azure-{kind}.csv"
        path.write_bytes(gzip.decompress((traces / f"azure/AzureLLMInferenceTrace_{kind}.csv.gz").read_bytes()))
        return path, _as_mooncake(path, rate_scale)

    return write


def _as_mooncake(path: Path, rate_scale: float) -> Path:
    """An Azure file as Mooncake's rows, with ids that no two prompts share."""
    other = path.with_name(f"{path.stem}-{rate_scale:g}.jsonl")
    next_id, first = 0, None
    with other.open("w") as file:
        for line in path.read_text().splitlines()[1:]:
            date, prompt, output = line.split(",")
            second, _, fraction = date.partition(".")
            time_s = datetime.fromisoformat(second).timestamp() + int(fraction) / 10 ** len(fraction)
            first = time_s if first is None else first
            count = -(-int(prompt) // ID_TOKENS)
            ids = list(range(next_id, next_id + count))
            next_id += count
            row = {"timestamp": round((time_s - first) * 1000 / rate_scale), "input_length": int(prompt)}
            file.write(json.dumps(row | {"output_length": int(output), "hash_ids": ids}) + "\n")
    return other


def _generated(number: int) -> Callable[[Path, Path], tuple[Path, Path]]:
    """Azure-like requests: lognormal lengths, 5.5 arrivals per second."""

    def write(_traces: Path, folder: Path) -> tuple[Path, Path]:
        path = folder / f"generated-{number}.csv"
        rng = np.random.default_rng(0)
        prompts = np.clip(rng.lognormal(6.6, 1.0, number), 1, 8000).astype(int)
        outputs = np.clip(rng.lognormal(4.9, 0.9, number), 1, 1500).astype(int)
        times = np.cumsum(rng.exponential(1 / 5.5, number))
        start = datetime(2024, 5, 10)
        with path.open("w") as file:
            file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
            for time_s, prompt, output in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
                file.write(
                    f"{start + timedelta(milliseconds=round(time_s * 1000)):%Y-%m-%d %H:%M:%S.%f},{prompt},{output}\n"
                )
        return path, _as_mooncake(path, 1.0)

    return write


def _shared_prefixes(_traces: Path, folder: Path) -> tuple[Path, Path]:
    """2,048 prompts of tokens: each one of 64 prefixes that 32 prompts share, and 256 tokens of its own."""
    path, other = folder / "shared.jsonl", folder / "shared-ids.jsonl"
    rng = random.Random(0)
    prefixes = [[rng.randrange(128_000) for _ in range(4 * ID_TOKENS)] for _ in range(64)]
    rows = list(range(64)) * 32
    rng.shuffle(rows)
    with path.open("w") as file, other.open("w") as ids_file:
        file.write('{"kvtwin_workload":1}\n')
        for number, prefix in enumerate(rows):
            tokens = prefixes[prefix] + [rng.randrange(128_000) for _ in range(256)]
            row = {"id": str(number), "arrival_ns": number * 10**8, "prompt_tokens": len(tokens), "output_tokens": 64}
            file.write(json.dumps(row | {"token_ids": tokens}) + "\n")
            ids = [*range(4 * prefix, 4 * prefix + 4), 256 + number]
            row = {"timestamp": number * 100, "input_length": len(tokens), "output_length": 64}
            ids_file.write(json.dumps(row | {"hash_ids": ids}) + "\n")
    return path, other


CASES = (
    Case("Mooncake conversation, 40,000 blocks", 40_000, _mooncake),
    Case("Mooncake conversation, 12,000 blocks", 12_000, _mooncake),
    Case("Azure conversation, 32,000 blocks", 32_000, _azure("conv")),
    Case("Azure code, 32,000 blocks", 32_000, _azure("code")),
    Case("Azure conversation at 6 times the load, 6,000 blocks", 6_000, _azure("conv", 6.0), rate_scale=6.0),
    Case("64 prefixes of tokens, 32 prompts each, 8,000 blocks", 8_000, _shared_prefixes),
    Case("10,000 generated requests, 32,000 blocks", 32_000, _generated(10_000)),
    Case("100,000 generated requests, 32,000 blocks", 32_000, _generated(100_000)),
    Case("1,000,000 generated requests, 32,000 blocks", 32_000, _generated(1_000_000), slow=True),
    Case("10,000,000 generated requests, 32,000 blocks", 32_000, _generated(10_000_000), slow=True),
)
