"""What a config.json says about images: whether the model takes any, and whether a step may compute a part of one."""

from __future__ import annotations

from typing import Any

_VISION_ENCODERS = ("vision_config", "vit_config", "vision_tower_config", "vision_n_layers")

_IMAGES_SEE_THEMSELVES = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")
"""Model types in which the tokens of an image attend to each other in both directions."""


def takes_images(config: dict[str, Any]) -> bool:
    """Whether the model has a vision encoder."""
    return any(config.get(key) for key in _VISION_ENCODERS)


def keeps_images_whole(config: dict[str, Any]) -> bool:
    """Whether vLLM computes all tokens of an image in one step, as if told ``--disable-chunked-mm-input``."""
    if not takes_images(config):
        return False
    if "is_mm_prefix_lm" in config:
        return bool(config["is_mm_prefix_lm"])
    return bool(config.get("vision_n_layers")) or config.get("model_type") in _IMAGES_SEE_THEMSELVES
