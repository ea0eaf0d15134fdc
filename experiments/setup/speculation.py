"""vLLM's ``--speculative-config``: keys that affect decisions, accepted drafts, and keys without effect."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvtwin.engine.sizing.layer_spec import KV_CACHE_DTYPES
from kvtwin.engine.speculation import Speculation
from kvtwin.experiments.errors import UserError
from kvtwin.sim.draft_acceptance import DraftAcceptance

_FLAG = "--speculative-config"

_DECIDING_KEYS = (
    "method",
    "num_speculative_tokens",
    "disable_lookahead_block_hashes",
    "disable_eagle_block_drop",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
    "model",
    "draft_tensor_parallel_size",
    "kv_cache_dtype",
)

_KEYS_WITHOUT_EFFECT = (
    "revision",
    "code_revision",
    "quantization",
    "max_model_len",
    "tensor_parallel_size",
    "draft_sample_method",
    "draft_load_config",
    "draft_lm_head_quantization",
    "moe_backend",
    "attention_backend",
    "enforce_eager",
    "disable_padded_drafter_batch",
    "use_local_argmax_reduction",
    "use_heterogeneous_vocab",
    "index_share_for_mtp_iteration",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)
"""Keys that say how drafts are made, which a simulation only counts."""

_NOT_MODELLED = {
    "parallel_drafting": "drafting all tokens at once is modelled for dflash only",
    "num_speculative_tokens_per_batch_size": "every step makes the same number of drafts",
    "enable_adaptive_verification": "all drafts are verified",
}


@dataclass(frozen=True)
class Drafting:
    """What ``--speculative-config`` says."""

    speculation: Speculation
    acceptance_rates: tuple[float, ...] | None
    """Probability that the first, the first two, ... drafts are right; None where only the workload can tell."""
    model: str | None
    """The drafter's name, or the path of its config.json."""
    tensor_parallel_size: int | None
    """GPUs of the drafter; None: as many as the target's."""
    kv_cache_dtype: str | None
    """None: the target's."""
    ignored: tuple[str, ...]
    """Keys that were given and make no difference."""

    def acceptance(self, seed: int) -> DraftAcceptance:
        """How many drafts are accepted, drawn with ``seed``."""
        return DraftAcceptance(self.speculation.num_speculative_tokens, self.acceptance_rates, seed)

    def describe(self) -> str:
        """One line on what is simulated and what is not."""
        rates = self.acceptance_rates
        accepted = "as listed in the workload" if rates is None else ", ".join(f"{rate:g}" for rate in rates)
        return (
            f"speculation: {self.speculation.method}, {self.speculation.num_speculative_tokens} drafts, "
            f"accepted {accepted}; drafting takes no time"
            + (f"; no effect: {', '.join(self.ignored)}" if self.ignored else "")
        )


def read_drafting(text: str | None, *, async_scheduling: bool) -> Drafting | None:
    """The settings in the JSON object ``text``; None without. UserError: anything that vLLM or kvtwin refuses."""
    if text is None:
        return None
    values = json.loads(text)
    for key, value in values.items():
        if key in _NOT_MODELLED and value:
            raise UserError(f"{_FLAG}: {key} is not modelled: {_NOT_MODELLED[key]}")
        if key not in (*_DECIDING_KEYS, *_KEYS_WITHOUT_EFFECT, *_NOT_MODELLED):
            raise UserError(f"{_FLAG}: {key!r} is not a key of vLLM")
    method = values.get("method")
    if isinstance(method, str) and method.endswith("_mtp"):  # vLLM's names of the modules of single models
        method = "mtp"
    num_drafts = values.get("num_speculative_tokens")
    if isinstance(num_drafts, bool) or not isinstance(num_drafts, int):
        raise UserError(f"{_FLAG}: num_speculative_tokens: expected a whole number, got {num_drafts!r}")
    switches = {
        name: values.get(name, False) for name in ("disable_lookahead_block_hashes", "disable_eagle_block_drop")
    }
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise UserError(f"{_FLAG}: {name}: expected true or false, got {value!r}")
    try:
        speculation = Speculation(method=method, num_speculative_tokens=num_drafts, **switches)
    except ValueError as error:
        raise UserError(f"{_FLAG}: {error}") from None
    if method == "suffix" and async_scheduling:
        raise UserError(f"{_FLAG}: vLLM schedules suffix decoding synchronously: add --no-async-scheduling")
    ignored = tuple(key for key in values if key in _KEYS_WITHOUT_EFFECT)
    rates = _acceptance_rates(values, num_drafts)
    return Drafting(speculation, rates, *_drafter(values), ignored)


def _drafter(values: dict[str, Any]) -> tuple[str | None, int | None, str | None]:
    """The drafter's name, GPUs and cache dtype; None where they are not given."""
    model, gpus, dtype = (values.get(key) for key in ("model", "draft_tensor_parallel_size", "kv_cache_dtype"))
    if model is not None and not isinstance(model, str):
        raise UserError(f"{_FLAG}: model: expected a name, got {model!r}")
    if gpus is not None and (type(gpus) is not int or gpus < 1):
        raise UserError(f"{_FLAG}: draft_tensor_parallel_size: expected 1 or more, got {gpus!r}")
    if dtype is not None and dtype not in KV_CACHE_DTYPES:
        raise UserError(f"{_FLAG}: kv_cache_dtype: expected one of {', '.join(KV_CACHE_DTYPES)}, got {dtype!r}")
    return model, gpus, dtype


def _acceptance_rates(values: dict[str, Any], num_drafts: int) -> tuple[float, ...] | None:
    """Rates per position, as vLLM's synthetic rejection sampling has them."""
    names = [
        name for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length") if values.get(name) is not None
    ]
    sampling = values.get("rejection_sample_method", "standard")
    if sampling not in ("standard", "synthetic"):
        raise UserError(f"{_FLAG}: rejection_sample_method: expected standard or synthetic, got {sampling!r}")
    if sampling == "standard":
        if names:
            raise UserError(f'{_FLAG}: {names[0]}: needs "rejection_sample_method": "synthetic"')
        return None
    if len(names) != 1:
        raise UserError(
            f"{_FLAG}: synthetic rejection sampling needs one of synthetic_acceptance_rates and "
            "synthetic_acceptance_length"
        )
    if names == ["synthetic_acceptance_length"]:
        length = values["synthetic_acceptance_length"]
        if not _is_number(length) or not 1 <= length <= num_drafts + 1:
            raise UserError(f"{_FLAG}: synthetic_acceptance_length: expected 1 to {num_drafts + 1}, got {length!r}")
        return tuple(min(1.0, max(0.0, length - 1 - position)) for position in range(num_drafts))
    rates = values["synthetic_acceptance_rates"]
    if (
        not isinstance(rates, list)
        or len(rates) != num_drafts
        or not all(_is_number(rate) and 0 <= rate <= 1 for rate in rates)
        or any(later > earlier for earlier, later in pairwise(rates))
    ):
        raise UserError(
            f"{_FLAG}: synthetic_acceptance_rates: expected {num_drafts} rates from 0 to 1, none above the one before, "
            f"got {json.dumps(rates)}"
        )
    return tuple(float(rate) for rate in rates)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
