"""What a start-up log of vLLM says of a server and of its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError

_NUMBER = r"(-?[\d.]+)"
_LOGGED = {
    "weights_gib": [rf"Model loading took {_NUMBER} GiB"],
    "activation_gib": [rf"{_NUMBER} GiB for peak activation", rf"activation peak memory takes {_NUMBER} ?GiB"],
    "consumed_gib": [rf"{_NUMBER} GiB for consumed memory"],
    "other_gib": [rf"{_NUMBER} GiB for non-torch", rf"non_torch_memory takes {_NUMBER} ?GiB"],
    "cuda_graphs_gib": [rf"Estimated CUDA graph memory: {_NUMBER} GiB"],
    "block_size": [r"Setting attention block size to (\d+) tokens"],
    "capacity_tokens": [r"GPU KV cache size: ([\d,]+) tokens"],
    "max_concurrency": [rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"],
}
"""Figures by the words around them, older versions' words last."""

_SERVER: dict[str, tuple[type, list[str]]] = {
    "version": (
        str,
        [
            r"LLM engine \(v?(\d+\.\d+[^)\s]*)\)",
            r"vLLM API server version (\d+\.\d+\S*)",
            r" version (\d+\.\d+\S*)",
        ],
    ),
    "model": (str, [r"config: model='([^']+)'", r"'model': '([^']+)'", r"model_tag': '([^']+)'"]),
    "total_gib": (
        float,
        [rf"Free memory on device \(-?[\d.]+/{_NUMBER} GiB\)", rf"total_gpu_memory \({_NUMBER} ?GiB\)"],
    ),
    "gpu_memory_utilization": (
        float,
        [
            rf"Desired GPU memory utilization is \({_NUMBER},",
            rf"'gpu_memory_utilization': {_NUMBER}",
            rf"--gpu-memory-utilization={_NUMBER} is equivalent",
            rf"gpu_memory_utilization \({_NUMBER}\)",
        ],
    ),
    "max_model_len": (
        int,
        [r"max_seq_len=(\d+)", r"Using max model len (\d+)", r"Maximum concurrency for ([\d,]+) tokens"],
    ),
    "max_num_batched_tokens": (
        int,
        [
            r"enabled with max_num_batched_tokens=(\d+)",
            r"'max_num_batched_tokens': (\d+)",
            r"compile range \(1, (\d+)\)",
        ],
    ),
    "max_num_seqs": (int, [r"'max_num_seqs': (\d+)", r"max_num_seqs \((\d+)\)"]),
    "tensor_parallel_size": (int, [r"[^_]tensor_parallel_size=(\d+)", r"'tensor_parallel_size': (\d+)"]),
    "pipeline_parallel_size": (int, [r"pipeline_parallel_size=(\d+)", r"'pipeline_parallel_size': (\d+)"]),
    "kv_cache_dtype": (str, [r"kv_cache_dtype=([\w.]+)", r"'kv_cache_dtype': '([^']+)'"]),
    "num_drafts": (int, [r"'num_speculative_tokens': (\d+)", r"num_spec_tokens=(\d+)"]),
    "draft_method": (str, [r"'method': '(\w+)'", r"SpeculativeConfig\(method='(\w+)'"]),
}
"""Settings of the server, the surest words first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUpLog:
    """One server's settings and figures; None where the log does not say.

    ``logged`` has figures by name: gibibytes as printed, tokens, blocks. Of several workers the least memory counts.
    """

    settings: dict[str, Any]
    enforce_eager: bool
    enable_prefix_caching: bool
    reads_images: bool
    logged: dict[str, float]

    @property
    def version(self) -> tuple[int, int] | None:
        """vLLM's version, major and minor."""
        found = re.match(r"(\d+)\.(\d+)", self.settings.get("version") or "")
        return (int(found[1]), int(found[2])) if found else None


def read_start_up_log(path: Path) -> StartUpLog:
    """The log at ``path``. UserError: it cannot be read, or says nothing of the cache's memory."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"--log {path}: {error.strerror or error}") from None
    return parse_start_up_log(text, str(path))


def parse_start_up_log(text: str, name: str) -> StartUpLog:
    """What ``text`` says. UserError: nothing of the cache's memory."""
    available = [_number(value) for value in re.findall(rf"Available KV cache memory: {_NUMBER} GiB", text)]
    reserved = re.findall(rf"the rest of the memory reserved for KV Cache is {_NUMBER} ?GiB", text)
    available += [_number(value) for value in reserved]
    logged = {key: value for key, words in _LOGGED.items() if (value := _first(text, words)) is not None}
    known = [value for value in available if value is not None]
    if known:
        logged["available_gib"] = min(known)
    if "available_gib" not in logged and "capacity_tokens" not in logged:
        raise UserError(f"--log {name}: no start-up log of vLLM: it has no line 'Available KV cache memory: ... GiB'")
    settings = {key: _setting(text, kind, words) for key, (kind, words) in _SERVER.items()}
    return StartUpLog(
        settings={key: value for key, value in settings.items() if value is not None},
        enforce_eager=bool(re.search(r"enforce_eager['\"]?[=:] ?True|Cudagraph is disabled under eager mode", text)),
        enable_prefix_caching=not re.search(r"enable_prefix_caching['\"]?[=:] ?False", text),
        reads_images=not re.search(r"Skipping memory profiling for multimodal|'skip_mm_profiling': True", text),
        logged=_without_sums(logged),
    )


def _without_sums(logged: dict[str, float]) -> dict[str, float]:
    """The parts of what newer versions print as sums: weights with what is beside them, activations with graphs."""
    consumed = logged.pop("consumed_gib", None)
    if consumed is None:
        return logged
    if "weights_gib" in logged:
        logged["other_gib"] = round(consumed - logged["weights_gib"], 2)
    if "activation_gib" in logged:
        if "cuda_graphs_gib" in logged:
            logged["activation_gib"] = round(logged["activation_gib"] - logged["cuda_graphs_gib"], 2)
        else:
            logged["activation_and_graphs_gib"] = logged.pop("activation_gib")
    return logged


def _first(text: str, words: list[str]) -> float | None:
    return next((_number(found[1]) for pattern in words if (found := re.search(pattern, text))), None)


def _setting(text: str, kind: type, words: list[str]) -> Any:
    for pattern in words:
        if found := re.search(pattern, text):
            number = _number(found[1])
            return found[1] if kind is str else None if number is None else kind(number)
    return None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
