"""The vision tower of a model that also reads images: its weights, and the profiling run that vLLM makes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TYPE_DEFAULTS: dict[str, dict[str, int]] = {
    "qwen3_5": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "depth": 27,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
"""By vision model type, where config.json may leave fields out; from the transformers library."""

_QWEN_MAX_IMAGE_TOKENS = 16_384
"""Of the Qwen-VL image processors: 4096 x 4096 pixels, 32 x 32 of them a token."""

ENCODER_LAYER_VALUES = ((4, 1.0), (6, 1.5), (9, 2.0))
"""Values per patch alive in a layer, in hidden and intermediate sizes: fewest, assumed, most.

Fewest: residual, normalised copy, attention and its output beside one intermediate value. Most: queries, keys and
values twice (fused and split) and the MLP before and after its activation.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """Sizes of a vision tower. It runs in the model's dtype, the same on every rank but for its layers.

    ``image_tokens`` are what the largest image takes in the prompt, ``image_patches`` in the tower.
    """

    params: int
    hidden_size: int
    intermediate_size: int
    image_tokens: int
    image_patches: int
    patch_values: int

    def num_images(self, batched_tokens: int, num_seqs: int) -> int:
        """Largest images in the profiling run: as many as the encoder's budget takes, one at least."""
        return max(1, min(max(batched_tokens, self.image_tokens) // self.image_tokens, num_seqs))

    def peak_values(self, num_images: int) -> list[int]:
        """Values alive at once while so many images run through the tower: fewest, assumed, most."""
        patches = num_images * self.image_patches
        per_patch = [h * self.hidden_size + i * self.intermediate_size for h, i in ENCODER_LAYER_VALUES]
        return [round(patches * (values + self.patch_values)) for values in per_patch]


def read_vision_tower(config: dict[str, Any], text_hidden_size: int) -> VisionTower | None:
    """The vision tower in a config.json; None without one, or where its sizes are not stated."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return None
    kind = str(vision.get("model_type") or config.get("model_type") or "").removesuffix("_moe").removesuffix("_vision")
    vision = {**_TYPE_DEFAULTS.get(kind.removesuffix("_moe"), {}), **vision}
    hidden, inner = _number(vision, "hidden_size", "embed_dim"), _number(vision, "intermediate_size")
    layers, patch = _number(vision, "depth", "num_hidden_layers"), _number(vision, "patch_size")
    if not (hidden and inner and layers and patch):
        return None
    merge = _number(vision, "spatial_merge_size") or 1
    patch_values = 3 * patch * patch * (_number(vision, "temporal_patch_size") or 1)
    tokens, patches = _largest_image(config, vision, patch, merge)
    out = _number(vision, "out_hidden_size") or text_hidden_size
    wide = hidden * merge * merge
    projector = wide * wide + wide * out if merge > 1 else hidden * out
    matrices = 3 if kind.startswith(("qwen2_5", "gemma4")) else 2
    positions = 2 * _number(vision, "position_embedding_size")  # Gemma 4: a table for each direction
    params = layers * (4 * hidden * hidden + matrices * hidden * inner) + projector
    params += (patch_values + positions) * hidden
    return VisionTower(
        params=params,
        hidden_size=hidden,
        intermediate_size=inner,
        image_tokens=tokens,
        image_patches=patches,
        patch_values=patch_values,
    )


def _largest_image(config: dict[str, Any], vision: dict[str, Any], patch: int, merge: int) -> tuple[int, int]:
    """Tokens and patches of the largest image."""
    if tokens := _number(config, "vision_soft_tokens_per_image"):
        return tokens, tokens * (_number(vision, "pooling_kernel_size") or 1) ** 2
    size = _number(vision, "image_size")
    if not size:
        return _QWEN_MAX_IMAGE_TOKENS, _QWEN_MAX_IMAGE_TOKENS * merge * merge
    patches = (size // patch) ** 2
    return _number(config, "mm_tokens_per_image") or patches // (merge * merge), patches


def _number(values: dict[str, Any], *keys: str) -> int:
    """The first of the keys that is a positive whole number, or 0."""
    found = (values.get(key) for key in keys)
    return next((value for value in found if type(value) is int and value > 0), 0)
