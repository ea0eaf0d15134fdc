"""What became of images: figures of a run, and their lines."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.statistics import EncoderStatistics


def image_figures(counts: EncoderStatistics, config: EngineConfig) -> dict[str, Any]:
    """Images and their embeddings, encoded or found in the encoder cache; those in hit blocks are neither."""
    return {
        "encoder_cache_size": config.encoder_cache_size,
        "max_num_encoder_input_tokens": config.encoder_budget if config.encoder_cache_size else 0,
        "encoded_images": counts.num_encoded_images,
        "encoded_embeddings": counts.num_encoded_embeddings,
        "cached_images": counts.num_cached_images,
        "cached_embeddings": counts.num_cached_embeddings,
    }


def image_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """Labels and values for the cache section, of a run in which images were needed."""
    if not summary["encoded_images"]:
        return []
    return [
        ("Images encoded / found in encoder cache:", f"{summary['encoded_images']} / {summary['cached_images']}"),
        ("  embeddings:", f"{summary['encoded_embeddings']} / {summary['cached_embeddings']}"),
    ]
