"""The drafter that ``--speculative-config`` names, as layers and weights."""

from __future__ import annotations

from dataclasses import replace

from kvtwin.engine.sizing.drafter import Drafter, block_drafter, eagle, next_token_modules, one_layer_like
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES
from kvtwin.engine.sizing.model_shape import ModelShape, WeightFormat
from kvtwin.experiments.catalogue.models import load_model, load_model_config
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.setup.speculation import Drafting

_WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix", "medusa")
"""Drafters that keep nothing in the cache."""


def drafter_of(drafting: Drafting | None, target: ModelShape) -> tuple[Drafter | None, str]:
    """The drafter, if it has layers that are known, and a remark on what is counted of it.

    UserError: a config.json that cannot be read; a target of states alone.
    """
    if drafting is None:
        return None, ""
    method = drafting.speculation.method
    if method in _WITHOUT_LAYERS:
        return None, "the weights of the heads are not counted" if method == "medusa" else ""
    if not target.has_attention:
        raise UserError(f"--speculative-config: {target.name} has no attention, and {method} drafts with layers of it")
    if method == "mtp":
        drafter = next_token_modules(target)
        return _placed(drafter, drafting), f"{target.num_mtp_layers} MTP layers like the target's last of attention"
    config = _config_of(drafting.model)
    if config is None and method in ("eagle", "eagle3"):
        unknown = f"{drafting.model} is not in the catalogue: " if drafting.model else ""
        return _placed(one_layer_like(target), drafting), f"{unknown}taken for one layer like the target's"
    if config is None:
        named = f"{drafting.model} is not in the catalogue" if drafting.model else "no model is named"
        return None, f"{named}: its memory is not counted; give the path of its config.json as model"
    shape = _in_dtype_of(target, load_model(str(drafting.model)))
    if method == "draft_model":
        drafter = Drafter(shape=shape)
    elif method == "dflash":
        fused = config.get("dflash_config") or {}
        drafter = block_drafter(shape, num_target_layers=len(fused.get("target_layer_ids") or ()))
    else:
        drafter = eagle(shape, head_rows=int(config.get("draft_vocab_size") or 0) if method == "eagle3" else 0)
    return _placed(drafter, drafting), f"{len(shape.layers)} layers of {shape.name}"


def _config_of(model: str | None) -> dict[str, object] | None:
    """The config.json of a drafter; None where it is not known by this name. UserError: a file that cannot be read."""
    if model is None:
        return None
    try:
        return load_model_config(model)[0]
    except UserError:
        if model.endswith(".json"):
            raise
        return None


def _placed(drafter: Drafter, drafting: Drafting) -> Drafter:
    return replace(drafter, tensor_parallel_size=drafting.tensor_parallel_size, kv_cache_dtype=drafting.kv_cache_dtype)


def _in_dtype_of(target: ModelShape, shape: ModelShape) -> ModelShape:
    """vLLM runs a drafter in the target's dtype."""
    size = float(DTYPE_BYTES[target.dtype])
    fmt = shape.weight_format if shape.quantization else WeightFormat(target.dtype, size, size, size)
    return replace(shape, dtype=target.dtype, weight_format=fmt)
