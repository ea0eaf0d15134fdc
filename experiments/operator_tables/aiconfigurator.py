"""Operators measured by NVIDIA: the tables of the package ``aiconfigurator-core``, asked for one model on one GPU.

The package holds times of single kernels for several GPUs, as vLLM of a certain version calls them. It is told the
model by a local config.json, so that it never looks for one on the network.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from kvtwin.experiments.errors import UserError

SYSTEMS = {
    "A100-80GB": "a100_sxm",
    "H100-80GB": "h100_sxm",
    "H200-141GB": "h200_sxm",
    "B200-180GB": "b200_sxm",
    "L40S-48GB": "l40s",
    "RTX-PRO-6000-Server-96GB": "rtx_pro_6000_server",
}
"""Our GPUs that the package has tables for, with its names."""

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
"""Kinds of models, by ``model_type``, that are full attention throughout, and the package's names of them."""

_KV_DTYPES = {"auto": None, "bfloat16": None, "float16": None, "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_COMMUNICATION = ("_ar", "_ar_1", "_ar_2", "_p2p", "_pre_dispatch", "_post_dispatch")
"""Ends of the names of operators that are not asked for: the interconnect is a term of its own."""


class Question(NamedTuple):
    """What the package is asked about."""

    model: str
    config: dict[str, Any]
    """The model's config.json."""
    gpu: str
    tensor_parallel_size: int
    dtype: str
    kv_cache_dtype: str
    data_parallel_size: int = 1
    """Ranks that share the experts."""
    enable_expert_parallel: bool = False


class OperatorTimes:
    """Times of the parts of a step, in ns of all layers together, without communication.

    UserError: the package is not installed, or has nothing for the question; then it says what there is.
    """

    def __init__(self, question: Question) -> None:
        system, config = _system(question), _config(question)
        ranks = question.data_parallel_size
        options: dict[str, Any] = {"tp_size": question.tensor_parallel_size, "attention_dp_size": ranks}
        if "num_experts" in config or "num_local_experts" in config:
            whole, sliced = "moe_ep_size", "moe_tp_size"
            if not question.enable_expert_parallel:
                whole, sliced = sliced, whole
            options |= {whole: question.tensor_parallel_size * ranks, sliced: 1}
        if kv_dtype := _KV_DTYPES[question.kv_cache_dtype]:
            options["kvcache_quant_mode"] = kv_dtype
        with _quiet(), tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            self._engine = _compiled(question, folder, system, options)
            self.version = _table_version(system)
            """Of vLLM, whose kernels were measured."""
            try:
                self.decode_ns(1, 16)
            except ValueError as error:
                raise _unsupported(question, str(error)) from None

    def tokens_ns(self, tokens: int) -> float:
        """All that depends on the number of tokens alone."""
        shared, _, _ = self._engine.mixed_step_breakdown_per_op(tokens, 0, tokens, 2)
        return _sum(part for part in shared if not part[0].endswith("_logits_gemm"))

    def sampled_ns(self, sampled: int) -> float:
        """The output head."""
        parts = self._engine.decode_step_per_op(sampled, 16, 2)
        return _sum(part for part in parts if part[0].endswith("_logits_gemm"))

    def decode_ns(self, sequences: int, context: int) -> float:
        """Attention of sequences that decode, each after ``context`` tokens."""
        parts = self._engine.decode_step_per_op(sequences, context, 2)
        return _sum(part for part in parts if part[0].endswith("_attention"))

    def prefill_ns(self, prompts: int, tokens: int, before: int) -> float:
        """Attention of prompts: ``tokens`` of each, after ``before`` of its tokens."""
        parts, _ = self._engine.run_static_per_op(
            batch_size=prompts, isl=tokens + before, osl=1, prefix=before, mode="static_ctx"
        )
        return _sum(part for part in parts if part[0].endswith("_attention"))


def package_version() -> str:
    """Of the installed package. UserError: there is none."""
    try:
        import aiconfigurator_core  # noqa: F401
    except ImportError:
        raise UserError("--step-time aic: needs the extra: pip install 'kvtwin[aic]'") from None
    return version("aiconfigurator-core")


def _sum(parts: Any) -> float:
    return sum(milliseconds for name, milliseconds, *_ in parts if not name.endswith(_COMMUNICATION)) * 1e6


def _system(question: Question) -> str:
    if question.gpu not in SYSTEMS:
        raise UserError(f"--step-time aic: no tables for {question.gpu}; there are some for {', '.join(SYSTEMS)}")
    return SYSTEMS[question.gpu]


def _config(question: Question) -> dict[str, Any]:
    config = question.config
    kind = str(config.get("model_type"))
    has_windows = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    if kind not in ARCHITECTURES or has_windows:
        what = f"{kind} with a sliding window" if kind in ARCHITECTURES else kind
        raise UserError(
            f"--step-time aic: no tables for models of type {what}; there are some for {', '.join(ARCHITECTURES)} "
            "with full attention throughout"
        )
    if question.dtype not in ("bfloat16", "float16"):
        raise UserError(f"--step-time aic: no tables for dtype {question.dtype}; there are some for bfloat16, float16")
    if question.kv_cache_dtype not in _KV_DTYPES:
        raise UserError(
            f"--step-time aic: no tables for a cache of {question.kv_cache_dtype}; there are some for "
            f"{', '.join(_KV_DTYPES)}"
        )
    return {**config, "architectures": [ARCHITECTURES[kind]]}


def _compiled(question: Question, folder: str, system: str, options: dict[str, Any]) -> Any:
    from aiconfigurator_core.sdk.engine import EngineHandle

    try:
        return EngineHandle.compile(folder, system, "vllm", **options)
    except (ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise _unsupported(question, str(error)) from None


def _unsupported(question: Question, reason: str) -> UserError:
    line = " ".join(reason.split())[:200]
    return UserError(
        f"--step-time aic: no tables for {question.model} on {question.tensor_parallel_size} x {question.gpu}: {line}"
    )


def _table_version(system: str) -> str:
    from aiconfigurator_core.sdk.perf_database import resolve_query_version

    return resolve_query_version(system, "vllm", "current")


@contextmanager
def _quiet() -> Iterator[None]:
    """The package logs much that is no news to a user."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
